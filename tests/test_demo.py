"""`otel-smol demo`: a newcomer's first run, end to end, and every way to get it wrong."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
from rich.console import Console
from smolagents import ActionStep

from otel_smol import cli, rebuild
from otel_smol.cli import child, demo, demo_agent, demo_script, numbers, screen, svg, tables
from otel_smol.cli.chart import Curve, Marks, draw
from otel_smol.curve import Fit
from otel_smol.otlp import MetricPoint
from otel_smol.receiver import Receiver
from otel_smol.records import RunRecord, StepRecord
from tests.programs import PATIENCE, PATIENT

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NUMBER = r"[\d,]+|-"


@dataclass
class Run:
    """One demo in a child process: what arrived, and what the same agent really does."""

    record: RunRecord
    metrics: list[MetricPoint]
    truth: list[int]
    """The prompts of the agent's own calls."""
    total: int
    """With managed agents."""

    def shown(self, width: int = 80, **settings: Any) -> str:
        return shown(self.record, width, **settings)


@cache
def measured(steps: int, kind: str = "code", managed: bool = False) -> Run:
    def patient(*given: Any) -> dict[str, str]:
        return {**environment(*given), **PATIENT}

    environment = child.environment
    with Receiver() as receiver, mock.patch.object(child, "environment", patient):
        options = [str(steps), kind, *(["managed"] if managed else [])]
        child.run(demo.AGENT_MODULE, options, receiver.endpoint, demo.SERVICE)
        spans, metrics = receiver.spans(), receiver.metrics()
    [record] = rebuild.runs(spans)
    assert {span.resource["service.name"] for span in spans} == {"otel-smol-demo"}
    agent: Any = demo_agent.make_agent(steps, kind, managed)
    agent.run(demo_script.TASK)
    truth = [step.token_usage.input_tokens for step in agent.memory.steps if isinstance(step, ActionStep)]
    models = [agent.model, *(inner.model for inner in agent.managed_agents.values())]
    return Run(record, metrics, truth, sum(model.billed_input for model in models))


def shown(record: RunRecord, width: int = 80, **settings: Any) -> str:
    file = io.StringIO()
    screen.show(record, Console(file=file, width=width, **settings), demo.NOTE)
    return file.getvalue()


def number(text: str) -> int:
    return 0 if text == "-" else int(text.replace(",", ""))


def rows(text: str) -> list[list[int]]:
    """The steps' rows as numbers: step, input, fixed, new, replayed, so far."""
    pattern = rf"^ *(\d+) +(?:[a-z_]+ +)?({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER})$"
    return [[number(cell) for cell in found] for found in re.findall(pattern, text, re.MULTILINE)]


# --- end to end ------------------------------------------------------------------------------------------------------


def test_command(tmp_path: Path) -> None:
    """The command works in an environment that is set up for something else, and writes the picture."""
    hostile = {
        "OTEL_SDK_DISABLED": "true",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces",
        "OTEL_SERVICE_NAME": "mine",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "COLUMNS": "100",
        "PYTHONIOENCODING": "utf-8",
    }
    command = [sys.executable, "-c", "import sys; from otel_smol.cli import main; sys.exit(main())"]
    picture = tmp_path / "curve.svg"
    done = subprocess.run(
        [*command, "demo", "--svg", str(picture)], capture_output=True, encoding="utf-8", env=os.environ | hostile
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"The curve is in {picture}.\n"  # no progress where there is no terminal
    run = measured(12)
    assert done.stdout == run.shown(100)
    assert picture.read_text(encoding="utf-8") == svg.curve(run.record)


OF_THE_SAME_NAME = ["queue", "random", "types", "tokenize", "html", "logging", "sitecustomize", "smolagents/__init__"]
"""Modules that a user may have beside them, and that the agent needs: the standard library's, or installed ones."""


def started_in(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as it is installed, in a folder as the shell sees it."""
    command = [str(Path(sys.executable).with_name("otel-smol")), "demo", "--steps", "2", *arguments]
    return subprocess.run(["sh", "-c", f'{folder}; exec "$@"', "sh", *command], capture_output=True, text=True)


def test_any_folder(tmp_path: Path) -> None:
    """Modules of the current folder are not the agent's, and nothing is left in it."""
    for name in OF_THE_SAME_NAME:
        module = tmp_path / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text("raise SystemExit('the wrong one')")
    before = sorted(tmp_path.rglob("*"))
    done = started_in(f"cd '{tmp_path}'")
    assert (done.returncode, done.stderr) == (0, "")
    assert "took 2 steps" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_deleted_folder(tmp_path: Path) -> None:
    """Of the agent's folder nothing is needed, either."""
    gone = f"mkdir '{tmp_path}/gone'; cd '{tmp_path}/gone'; rmdir '{tmp_path}/gone'"
    done = started_in(gone)
    assert (done.returncode, done.stderr) == (0, "")
    assert "took 2 steps" in done.stdout
    done = started_in(gone, "--svg", "x.svg")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_temporary_folder_cannot_be_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr."""
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    assert cli.main(["demo"]) == 1
    assert re.fullmatch(r"otel-smol demo: cannot start the agent: .*/no/such/folder.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("steps", "kind", "managed"),
    [(12, "code", False), (12, "tool-calling", False), (12, "code", True), (1, "code", False), (40, "code", False)],
)
def test_numbers(steps: int, kind: str, managed: bool) -> None:
    """What is on the screen is what is in the spans, in the metrics, and in what the script really billed."""
    run = measured(steps, kind, managed)
    record, text = run.record, run.shown()
    own = sum(run.truth)
    assert record.state == "success"
    assert record.max_steps == steps == len(record.steps)
    assert record.agent == ("manager" if managed else "researcher")
    assert [step.input_tokens for step in record.steps] == run.truth
    assert (record.input_tokens, record.total_input_tokens) == (own, run.total)
    assert sum(point(run, "smolagents.history.input_tokens")) == run.total
    assert f"{numbers.count(steps, 'step')} and sent its model {own:,} input" in " ".join(text.split())
    table = {row[0]: row[1:] for row in rows(text)}
    assert len(table) == (steps if steps <= tables.ALL_STEPS else 2 * tables.ENDS)
    for step, (sent, fixed, new, replayed, so_far) in table.items():
        assert sent == run.truth[step - 1] == fixed + new + replayed
        assert so_far == sum(run.truth[:step])


def point(run: Run, name: str) -> list[Any]:
    """The last value of each series of a metric."""
    last = {str(p.attributes): p.value for p in sorted(run.metrics, key=lambda p: p.time) if p.name == name}
    return list(last.values())


def test_managed() -> None:
    """Own and total, and a section for the managed agent with a row per run."""
    run = measured(12, "code", True)
    text = " ".join(run.shown(120).split())
    inner = run.record.managed
    assert [one.agent for one in inner] == ["researcher"] * 3
    theirs = run.total - sum(run.truth)
    assert sum(one.input_tokens or 0 for one in inner) == theirs
    assert f"({run.total:,} with its managed agents)" in text
    assert f"{sum(run.truth):,} own + {theirs:,} researcher = {run.total:,} input tokens" in text
    assert f"researcher, 3 runs: {theirs:,} input tokens" in text
    for i, one in enumerate(inner, 1):
        assert f" {i} 4 {one.input_tokens:,} {one.fixed_tokens:,}" in text


def test_forecast_and_causes() -> None:
    """The forecast of half way is near the outcome, and the largest cause is the large page."""
    run = measured(12)
    record, text = run.record, run.shown()
    assert record.forecast_half_way == pytest.approx(record.input_tokens, rel=0.05)
    assert f"Forecast after step 6: {record.forecast_half_way:,} for all 12 steps." in text
    worst = record.causes()[0]
    assert (worst.step.number, worst.step.main_tool, worst.times_sent) == (3, "visit_page", 9)
    assert re.search(rf"step 3  visit_page +{worst.added:,} × 9  = {worst.tokens:,}  2\d%", text)
    assert list(record.input_by_tool())[:3] == ["visit_page", "web_search", "read_file"]
    by_hand = 12 * round(record.fit.base_tokens) + 66 * round(record.fit.growth_tokens) if record.fit else 0
    assert f"= {by_hand:,} (measured: {record.input_tokens:,})" in text


# --- the screen ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 1, 9, 40])
def test_a_terminal_too_narrow_for_it(width: int) -> None:
    """It gets what one of 60 columns gets, and breaks the lines itself: no number is cut."""
    run = measured(12, "code", False)
    assert run.shown(width) == run.shown(60)


@pytest.mark.parametrize("width", [60, 80, 120, 160])
@pytest.mark.parametrize(("steps", "managed"), [(12, False), (12, True), (40, False), (1, False)])
def test_widths(steps: int, managed: bool, width: int) -> None:
    """At any width no line is too long, no row is broken or cut, and commands stand on one line."""
    text = measured(steps, "code", managed).shown(width)
    assert max(map(len, text.splitlines())) <= width
    assert len(rows(text)) == (steps if steps <= tables.ALL_STEPS else 2 * tables.ENDS)
    assert "  export OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317\n" in text
    cut = [line for line in text.splitlines() if "…" in line and "more" not in line]
    assert cut == []


def test_fits_on_a_screen() -> None:
    """Twelve steps take no more than 60 lines of 80 columns."""
    assert len(measured(12).shown(80).rstrip().splitlines()) <= 60


def test_middle_is_left_out() -> None:
    """A long run shows its ends, and one row that says how many steps are missing."""
    text = measured(40).shown()
    assert len(re.findall("^ *… +24 more ", text, re.MULTILINE)) == 1
    assert [row[0] for row in rows(text)] == [*range(1, 9), *range(33, 41)]


def test_colour_only_where_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours on a terminal, none in a file or with NO_COLOR."""
    run = measured(12)
    colour = re.compile(r"\x1b\[[\d;]*3\d")
    assert "\x1b" not in run.shown()
    assert colour.search(run.shown(force_terminal=True, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(run.shown(force_terminal=True, color_system="standard"))


def test_plain_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the encoding has no such characters, others stand for them."""
    cli.main([])  # makes the handler of such characters known
    capsys.readouterr()
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, "ascii", errors="plain") as file:
        screen.show(measured(40).record, Console(file=file, width=80))
        file.flush()
        text = raw.getvalue().decode("ascii")
    assert "n x P + s x n x (n-1) / 2" in text
    assert "o measured  .. formula below  -- every step like the first" in text
    assert "?" not in text


def test_one_and_two_steps() -> None:
    """Too short for a curve: the screen says so, and does not fail."""
    assert "There is no curve yet" in measured(1).shown()
    text = shown(synthetic(2))
    assert "No forecast" in text
    assert "Input tokens so far" not in text


def test_unknown_usage() -> None:
    """A run whose tokens nobody reported is shown without numbers, not with zeros."""
    steps = [StepRecord(number=i, type="action") for i in (1, 2, 3)]
    text = shown(RunRecord(agent="[red]a[/]", steps=steps))
    assert "did not say how many tokens" in text
    assert "[red]a[/]" in text
    assert " ?" in text
    assert svg.curve(RunRecord(steps=steps)) is None


def test_run_that_ended_early() -> None:
    """A forecast for all steps is not held against a run that did not use them."""
    record = synthetic(8)
    record.max_steps, record.forecast_half_way = 20, 99_000
    assert "99,000 for all 20 steps. The run ended after 8." in shown(record)


def synthetic(n: int, base: int = 1000, growth: int = 100) -> RunRecord:
    """A run of n steps on the line."""
    steps = [
        StepRecord(
            number=i + 1,
            type="action",
            input_tokens=base + growth * i,
            fixed_tokens=base,
            new_tokens=growth if i else 0,
            replayed_tokens=max(growth * (i - 1), 0),
        )
        for i in range(n)
    ]
    total = sum(step.input_tokens or 0 for step in steps)
    return RunRecord(
        agent="a",
        max_steps=n,
        input_tokens=total,
        overpay=(n - 1) / 2,
        replay_share=0.5,
        fit=Fit(base, growth, 1.0, n),
        steps=steps,
    )


# --- chart and picture -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 12, 47, 500])
@pytest.mark.parametrize("width", [60, 100])
def test_chart(n: int, width: int) -> None:
    """Every step has its mark, curve and line end with their numbers, and no line is too long."""
    curve = Curve.of(synthetic(n))
    assert curve is not None
    lines = [line.plain for line in draw(curve, width, 10, Marks())]
    assert len(lines) == 12
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count("●") == n or n > width / 2
    assert f"{curve.total:,}" in lines[0]
    assert f"{curve.expected:,}" in text
    assert lines[-1].split()[0] == "step"
    assert lines[-1].split()[-1] == str(n)


@pytest.mark.parametrize("n", [1, 2, 3, 12, 200, 500])
def test_picture(n: int) -> None:
    """Well-formed, accessible, small, and all of it within its frame."""
    text = svg.curve(synthetic(n))
    assert text is not None
    assert len(text.encode()) <= 20_000
    root = ElementTree.fromstring(text)
    names = {element.tag.partition("}")[2] for element in root.iter()}
    assert {"title", "desc", "path", "rect", "text"} <= names
    assert root.get("role") == "img"
    for element in root.iter():
        for name, limit in (("x", svg.WIDTH), ("cx", svg.WIDTH), ("y", svg.HEIGHT), ("cy", svg.HEIGHT)):
            if element.get(name) and element.tag.endswith(("text", "circle")):
                assert 0 <= float(element.get(name, "")) <= limit
    heights = sorted(float(t.get("y", "")) for t in root.iter() if "strong" in t.get("class", "").split())
    assert all(b - a >= 15 for a, b in pairwise(heights)), "labels overlap"


@pytest.mark.skipif(version("smolagents") != "1.26.0", reason="the size of the prompts depends on the version")
def test_picture_in_docs_is_current() -> None:
    """The committed picture is that of a real run: make it again with `otel-smol demo --svg docs/curve.svg`."""
    assert (DOCS / "curve.svg").read_text(encoding="utf-8") == svg.curve(measured(12).record)


def test_numbers_on_axes() -> None:
    """Round numbers from 0 to at most the highest."""
    assert numbers.ticks(125_075) == [0, 50_000, 100_000]
    assert numbers.ticks(0) == [0]
    assert numbers.step_ticks(12) == list(range(1, 13))
    assert numbers.step_ticks(200) == [1, *range(20, 201, 20)]
    assert [numbers.short(n) for n in (0, 950, 9_500, 120_000, 1_200_000)] == ["0", "950", "9.5k", "120k", "1.2M"]
    assert [numbers.percent(share) for share in (0, 0.001, 0.654, 1)] == ["0%", "<1%", "65%", "100%"]


# --- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["demo", "--steps", "0"], "give a whole number from 1 to 500, not '0'"),
        (["demo", "--steps", "x"], "give a whole number from 1 to 500, not 'x'"),
        (["demo", "--steps", "-3"], "give a whole number from 1 to 500, not '-3'"),
        (["demo", "--steps", "501"], "give a whole number from 1 to 500, not '501'"),
        (["demo", "--steps"], "expected one argument"),
        (["demo", "--agent", "cook"], "give code or tool-calling, not 'cook'"),
        (["demo", "--svg", "no/such/folder/x.svg"], "give a file in a folder that exists"),
        (["demo", "--svg", "."], "give a file in a folder that exists"),
        (["demo", "12"], "unrecognized arguments: 12"),
        (["demo", "--nonsense"], "see otel-smol demo --help"),
        (["dmo"], "there is no command 'dmo', only demo"),
        (["--nonsense"], "see otel-smol --help"),
    ],
)
def test_unusable_arguments(arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that says what to do, status 2, nothing on stdout."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert out == ""
    assert err.startswith("otel-smol")
    assert err.count("\n") == 1
    assert remedy in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the commands are listed; each has its own help."""
    assert cli.main([]) == 0
    assert "  run a real agent" in capsys.readouterr().out
    for arguments, word in ((["--version"], "otel-smol 0."), (["demo", "--help"], "--managed")):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert not end.value.code
        assert word in capsys.readouterr().out


def test_child_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If the agent's process fails, the end of its stderr is shown, and the status is 1."""
    monkeypatch.setattr(demo, "AGENT_MODULE", "no_such_module")
    assert cli.main(["demo"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("otel-smol demo: the agent ended with status 1, and said last:\n")
    assert "No module named no_such_module" in err


def test_instrument_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `opentelemetry-instrument` one line says what to install."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert cli.main(["demo"]) == 1
    assert re.fullmatch(r"otel-smol demo: opentelemetry-instrument .*: pip install .*\n", capsys.readouterr().err)


def test_nothing_arrives(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that ran without telemetry is an error, not an empty screen."""
    monkeypatch.setattr(child, "run", lambda *_: None)
    monkeypatch.setattr(demo, "ARRIVAL_SECONDS", 0.01)
    assert cli.main(["demo"]) == 1
    assert "its telemetry did not arrive" in capsys.readouterr().err


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the command without a traceback."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "run", interrupt)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == ""


ASLEEP = """
import os, pathlib, time
pathlib.Path(os.environ["PID"]).write_text(f"{os.getpid()}\\n")
time.sleep(300)
"""


@pytest.mark.parametrize("nohup", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal(number: signal.Signals, nohup: bool, tmp_path: Path) -> None:
    """The agent ends with the command; what `nohup` ignores stays ignored."""
    (tmp_path / "asleep.py").write_text(ASLEEP)
    program = "import sys; from otel_smol.cli import demo, main; demo.AGENT_MODULE = 'asleep'; sys.exit(main(['demo']))"
    pid = tmp_path / "pid"
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PID": str(pid), "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_line(pid)
        command.send_signal(number)
        if nohup and number == signal.SIGHUP:
            with pytest.raises(subprocess.TimeoutExpired):
                command.wait(1)
            command.send_signal(signal.SIGTERM)
            number = signal.SIGTERM
        _, stderr = command.communicate(timeout=PATIENCE)
    finally:
        command.kill()
    assert (command.returncode, stderr) == (child.SIGNALLED + number, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not list(tmp_path.glob("otel-smol-*"))


def wait_for_line(file: Path) -> None:
    """Until another process has written one."""
    end = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < end, "the agent was not started"
        time.sleep(0.05)


def test_a_signal_while_the_agent_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nobody knows the agent yet: it is ended as soon as it is known."""
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*_: object, **settings: Any) -> subprocess.Popen[str]:
        started.append(popen([sys.executable, "-c", "import time; time.sleep(300)"], **settings))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr("subprocess.Popen", start)
    with pytest.raises(SystemExit) as end:
        cli.main(["demo"])
    assert end.value.code == 128 + signal.SIGTERM
    assert started[0].returncode == -signal.SIGKILL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_picture_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong with the file is said in one line."""
    assert demo._write(tmp_path / "gone" / "x.svg", "<svg/>") == 1
    assert demo._write(tmp_path / "x.svg", None) == 1
    assert capsys.readouterr().err.count("\n") == 2


def test_environment() -> None:
    """Nothing of the user's telemetry settings reaches the child; everything else does."""
    user = {"OTEL_EXPORTER_OTLP_HEADERS": "key=secret", "OTEL_SMOL_TOKEN_BUDGET": "1", "PATH": "/bin"}
    found = child.environment(user, "http://127.0.0.1:1", "service")
    assert found["PATH"] == "/bin"
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in found
    assert "OTEL_SMOL_TOKEN_BUDGET" not in found
    assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:1"
    assert "otel_smol" not in found["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"].split(",")


def test_python_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user's path meant in their folder it means in the agent's; a checkout is found from within it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    given = os.pathsep.join(["lib", "", "/abs", "."])
    monkeypatch.chdir(folder)
    assert child._python_path(given).split(os.pathsep) == [f"{folder}/lib", "/abs", str(folder)]
    assert child._python_path("") == ""
    monkeypatch.chdir(ROOT)
    assert child._python_path("/abs").split(os.pathsep) == [str(ROOT), "/abs"]
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert child._python_path(given) == "/abs"


def test_progress() -> None:
    """On a terminal the steps of the outermost agent are counted as they arrive."""
    file = io.StringIO()
    talk = Console(file=file, force_terminal=True, width=80)
    demo.measure(3, "code", True, talk)
    assert "3/3" in file.getvalue()


@pytest.mark.parametrize("tool", ["web_search", "visit_page", "read_file"])
def test_script(tool: str) -> None:
    """What a tool finds has exactly the size that the script says, and names no real site."""
    text = demo_script.found(tool, "https://example.org/x", 5000)
    assert len(text) == 5000
    assert set(re.findall(r"https?://([^/)\s]+)/", text)) <= {"example.org"}
