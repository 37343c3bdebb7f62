"""What goes wrong on the way: what was sent, what arrived, and what the program noticed of it.

Real programs and the real collector; the backend is an in-process OTLP receiver, so that what arrived is known to the
span. Each fault has a collector and a backend of its own. docs/backends.md has the same table.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from otel_smol import semconv as sc
from tests.programs import PATIENCE, PATIENT

from .e2e import QUICK, Program, Rows, Truth, launch, truth_in
from .exposition import samples, total
from .programs import ROOT, Collector, require, wait_for
from .sink import Sink
from .stalls import Watch, going

DOCUMENT = ROOT / "docs" / "backends.md"
SPANS_PER_RUN = 10
"""A run of `runs.py`: itself, and three times a step, its call and its tool (the last one is `final_answer`)."""

AT_ONCE = 3.0
"""Seconds (of a `Watch`) that the end of a program may take when all is well; it takes 0.2 on an idle machine."""
EXIT_SECONDS = 5.0
"""`OTEL_SMOL_EXIT_SECONDS` by default."""
IN_TIME = EXIT_SECONDS + AT_ONCE
SDK_ALONE = {"OTEL_SMOL_EXIT_SECONDS": "0", "OTEL_SMOL_QUIET_EXPORTERS": "false"}
TRIES_ON = {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
"""With nobody to send to, the SDK is still at its first request when the program ends, however slow the machine is."""
WAITS_TO_THE_END = {"OTEL_SMOL_EXIT_SECONDS": "60"}
"""Where the end is to take no time, it must not be the limit that sees to it, nor may the limit cost data."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """What a fault did."""

    sent: Truth
    sent_spans: int
    spans: int
    tokens: float
    ending: float
    """Seconds from its last word, or the signal, to its end."""
    code: int | None
    lines: tuple[str, ...]
    """What it wrote on stderr."""
    some_spans: Range = (0, 0)
    some_tokens: Range = (0, 0)
    """Where a part arrives: how much at least and at most."""
    working: tuple[float, ...] = ()
    """Seconds that its runs took, two by two."""


class Scene:
    """A folder, a backend and a collector, and programs that send to it."""

    def __init__(self, folder: Path, at_the_end: ExitStack) -> None:
        self.folder, self._at_the_end = folder, at_the_end
        folder.mkdir()
        self.sink = Sink().start()
        at_the_end.callback(self.sink.stop)

    def collector(self, queue: str = "100000") -> Collector:
        collector = Collector(
            self.folder / "collector",
            program=require("otelcol-contrib"),
            OTELCOL_TRACES_ENDPOINT=self.sink.url,
            OTELCOL_METRICS_ENDPOINT=self.sink.url,
            OTELCOL_QUEUE_SIZE=queue,
            OTELCOL_FSYNC="false",  # no machine dies here, and none is to wait for a slow disk
        )
        self._at_the_end.callback(collector.process.kill)
        return collector.start()

    def program(
        self, endpoint: str, script: str, *arguments: str, limits: Mapping[str, str] = PATIENT, **variables: str
    ) -> Program:
        to = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        errors = self.folder / "program.err"
        return launch(self._at_the_end, script, *arguments, errors=errors, **{**QUICK, **limits, **to, **variables})

    def tokens(self) -> float:
        """The newest value of each series of each process, added up."""
        newest: dict[tuple[object, ...], float] = {}
        for where, metric in self.sink.metrics():
            if metric.name == sc.HISTORY_INPUT_TOKENS_METRIC.name:
                for point in metric.sum.data_points:
                    key = (where["service.instance.id"], str(sorted(str(each) for each in point.attributes)))
                    newest[key] = max(newest.get(key, 0), point.as_int)
        return sum(newest.values())

    def spans(self, since: int = 0) -> int:
        """Those that began after a moment, in nanoseconds."""
        return len({span.span_id for span in self.sink.spans() if span.start_time_unix_nano >= since})

    def outcome(self, program: Program, sent: Truth, spans: int, ending: float, patience: float = PATIENCE) -> Outcome:
        """Wait until all has arrived, or as long as there is hope of it; then for what might come on top of it."""
        until = time.monotonic() + patience
        while (self.spans() < spans or self.tokens() < sent.input) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(min(2.0, patience))
        lines = tuple(program.stderr())
        return Outcome(sent, spans, self.spans(), self.tokens(), ending, program.code, lines)


def ended(program: Program) -> float:
    """End it, or wait for its end: how long that takes."""
    watch = Watch(program.pid)
    program.end()
    return watch.seconds()


# --- the faults ------------------------------------------------------------------------------------------------------


NOBODY = "http://127.0.0.1:9"


def runs_and_end(
    scene: Scene,
    endpoint: str,
    limits: Mapping[str, str] = TRIES_ON,
    protocol: str = "http/protobuf",
    patience: float = 0,
    before: Callable[[Program], None] = lambda _: None,
) -> Outcome:
    """Some runs, then the end of the program: how long they take, and what arrives."""
    program = scene.program(endpoint, "runs.py", limits=limits, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    sent, working = program.runs(1), []  # imports
    for _ in range(5):
        began = going()
        sent = program.runs(2)
        working.append(going() - began)
    before(program)
    outcome = scene.outcome(program, sent, sent.runs * SPANS_PER_RUN, ended(program), patience)
    return replace(outcome, working=tuple(working))


def nothing_wrong(scene: Scene) -> Outcome:
    return runs_and_end(scene, scene.collector().otlp, PATIENT, patience=PATIENCE)


def no_collector(scene: Scene, protocol: str = "http/protobuf") -> Outcome:
    return runs_and_end(scene, NOBODY, protocol=protocol)


def no_collector_for_the_sdk(scene: Scene) -> Outcome:
    """It ends while a request is tried, so that it has that one to give up and a last one: 11 seconds at least."""

    def tries(program: Program) -> None:
        wait_for(lambda: any("metrics" in line for line in program.stderr()), "an export of metrics")

    return runs_and_end(scene, NOBODY, SDK_ALONE, before=tries)


def no_collector_for_a_pool(scene: Scene) -> Outcome:
    """Three workers, which end side by side, each in its time; the parent has nothing to send."""
    program = scene.program(NOBODY, "pool.py", "fork", "0", "3", limits=TRIES_ON)
    sent = truth_in(program.line())
    return scene.outcome(program, sent, 3 * SPANS_PER_RUN, ended(program), patience=0)


def never_answers(scene: Scene, protocol: str = "http/protobuf") -> Outcome:
    with silent_listener() as address:
        return runs_and_end(scene, address, protocol=protocol)


@contextmanager
def silent_listener() -> Iterator[str]:
    """Takes connections and says nothing."""
    taken: list[socket.socket] = []

    def accept() -> None:
        try:
            while True:
                taken.append(listener.accept()[0])
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    for each in taken:
        each.close()


def killed_and_back(scene: Scene, away: float = 2.0, limits: Mapping[str, str] = PATIENT) -> Outcome:
    """kill -9 in the middle of a run, and started again on the same port; the process works on all the time."""
    collector = scene.collector()
    program = scene.program(collector.otlp, "runs.py", limits=limits)
    program.runs(2)
    wait_for(lambda: scene.spans() == 2 * SPANS_PER_RUN, "what was sent before")
    killed, back = threading.Event(), threading.Event()

    def work() -> int:
        """One run after the other until the collector has been killed, then now and then until it is back."""
        count = program.runs(20).runs
        while not killed.is_set():
            count = program.runs(20).runs
        while not back.wait(0.5):
            count = program.runs(1).runs
        return count

    with ThreadPoolExecutor(1) as beside:
        working = beside.submit(work)
        try:
            time.sleep(0.3)
            collector.process.kill()
            killed.set()
            time.sleep(away)
            collector.start()
        finally:
            killed.set()
            back.set()
        count = working.result()
    since = time.time_ns()
    sent = program.runs(2)
    # Until then an exporter may be between two tries, and the end would have to wait for it.
    wait_for(lambda: scene.spans(since) == 2 * SPANS_PER_RUN, "what was sent after")
    wait_for(lambda: scene.tokens() == sent.input, "the next export")
    # What is not there yet has been given up, or comes with the next try of the collector.
    patience = PATIENCE if limits is PATIENT else 4
    outcome = scene.outcome(program, sent, sent.runs * SPANS_PER_RUN, ended(program), patience)
    # Two runs before are safe, and two after; what was made last before the collector came back can wait for it, too.
    return replace(outcome, some_spans=(4 * SPANS_PER_RUN, count * SPANS_PER_RUN))


AWAY_SECONDS = 20.0
"""Longer than the SDK tries two requests, one after the other, each for 8.4 seconds at most."""
DOWN_SECONDS = 60.0


def backend_down(scene: Scene) -> Outcome:
    """The backend is away for a minute; a program has long ended when it comes back."""
    collector = scene.collector()
    scene.sink.stop()
    began = time.monotonic()
    program = scene.program(collector.otlp, "runs.py")
    sent = program.runs(5)
    ending = ended(program)
    time.sleep(max(0.0, began + DOWN_SECONDS - time.monotonic()))
    assert scene.spans() == 0
    scene.sink.start()
    return scene.outcome(program, sent, 5 * SPANS_PER_RUN, ending)


QUEUE = 1000
"""The smallest queue that the collector takes, in spans."""
BATCH = 512
"""Spans in a request of the SDK, by default."""


def queue_full(scene: Scene) -> Outcome:
    """Backend down, and more spans than the queue holds; the process lives until the backend is back."""
    collector = scene.collector(str(QUEUE))
    scene.sink.stop()
    program = scene.program(collector.otlp, "runs.py", limits=WAITS_TO_THE_END)
    program.runs(3 * QUEUE // SPANS_PER_RUN)  # what is refused has room in the SDK's own queue, of 2048
    program.say("export")  # until it has nothing left to try
    scene.sink.start()
    sent = program.runs(1)
    wait_for(lambda: scene.tokens() == sent.input, "an export that the queue has room for")
    # The collector sends again after a pause that has grown while the backend was away.
    wait_for(lambda: of_the_collector(collector, "otelcol_exporter_queue_size") == 0, "an empty queue")
    ending = ended(program)

    def accepted() -> float:
        return of_the_collector(collector, "otelcol_receiver_accepted_spans")

    wait_for(
        lambda: len(scene.sink.spans()) == accepted(), lambda: f"{accepted()} spans; {len(scene.sink.spans())} came"
    )
    outcome = scene.outcome(program, sent, sent.runs * SPANS_PER_RUN, ending, patience=0)
    # A request that would not fit whole is refused; the last run comes on top.
    return replace(outcome, some_spans=(QUEUE - BATCH, QUEUE + SPANS_PER_RUN))


def of_the_collector(collector: Collector, name: str) -> float:
    """One of its own metrics, over all that it receives or exports."""
    found = samples(collector.own_metrics_url)
    assert any(each == name for each, _ in found), name
    return total(found, name)


def signalled(scene: Scene, number: signal.Signals) -> Outcome:
    """A signal in the third step: all that has ended arrives, and step and run, which are ended as interrupted."""
    program = scene.program(scene.collector().otlp, "half_way.py")
    sent = truth_in(program.line())
    program.send(number)
    if number == signal.SIGTERM:
        watch = Watch(program.pid)
        program.wait()
        return scene.outcome(program, sent, SPANS_PER_RUN - 1, watch.seconds())  # the tool goes on
    time.sleep(1)  # it has come, and waits for the tool, which ends with the input
    return scene.outcome(program, sent, SPANS_PER_RUN, ended(program))


def ends(scene: Scene, how: str) -> Outcome:
    """The second run ends in its third step, by the program's own doing."""
    program = scene.program(scene.collector().otlp, "ends.py", how)
    sent = truth_in(program.line())
    if how != "os_exit":
        return scene.outcome(program, sent, 2 * SPANS_PER_RUN, ended(program))
    # All is exported but step, tool and run, which never end.
    exported = 2 * SPANS_PER_RUN - 3
    wait_for(lambda: scene.spans() == exported and scene.tokens() == sent.input, "what has ended")
    outcome = scene.outcome(program, sent, 2 * SPANS_PER_RUN, ended(program), patience=4)
    return replace(outcome, some_spans=(exported, exported), some_tokens=(sent.input, sent.input))


def killed(scene: Scene) -> Outcome:
    """SIGKILL of the program: what was exported before is safe, the rest is lost."""
    when_told = {**PATIENT, "OTEL_METRIC_EXPORT_INTERVAL": "600000", "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    program = scene.program(scene.collector().otlp, "runs.py", limits=when_told)
    before = program.runs(2)
    program.say("export")
    wait_for(lambda: scene.tokens() == before.input and scene.spans() == 2 * SPANS_PER_RUN, "two runs")
    sent = program.runs(2)
    program.send(signal.SIGKILL)
    watch = Watch(program.pid)
    program.wait()
    outcome = scene.outcome(program, sent, 4 * SPANS_PER_RUN, watch.seconds(), patience=4)
    return replace(outcome, some_spans=(2 * SPANS_PER_RUN,) * 2, some_tokens=(before.input,) * 2)


def forked(scene: Scene, kind: str, protocol: str = "http/protobuf") -> Outcome:
    """A pool whose parent has done a run, and exported it, when it forks."""
    collector = scene.collector()
    endpoint = collector.otlp if protocol != "grpc" else f"http://127.0.0.1:{collector.grpc}"
    program = scene.program(endpoint, "pool.py", kind, "1", "6", OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    sent = truth_in(program.line())
    outcome = scene.outcome(program, sent, 7 * SPANS_PER_RUN, ended(program))
    instances = {where["service.instance.id"] for where, _ in scene.sink.metrics()}
    assert 2 <= len(instances) <= 4
    return outcome


@dataclass(frozen=True)
class Fault:
    """One row: how it is brought about, what of spans and tokens arrives, and how the program ends."""

    name: str
    run: Callable[[Scene], Outcome]
    spans: str = "all"
    tokens: str = "all"
    end: str = "at once"
    code: int = 0
    within: float = AT_ONCE
    says: int = 0
    """Lines of an exporter or of ours at most."""
    last_line: str = ""
    """Of the program's own traceback."""

    @property
    def row(self) -> str:
        return f"| {self.name} | {self.spans} | {self.tokens} | {self.end} |"


def fault_without(name: str, run: Callable[[Scene], Outcome]) -> Fault:
    """Nobody to send to."""
    return Fault(name, run, "none", "none", "after 5 s, one line", within=IN_TIME, says=1)


SOME = "what was exported"
FAULTS = [
    Fault("nothing", nothing_wrong),
    fault_without("no collector", no_collector),
    Fault(
        "the same with the SDK's own end",
        no_collector_for_the_sdk,
        "none",
        "none",
        "after 7 to 20 s, a line for each retry",
        within=30,
        says=100,
    ),
    fault_without("no collector, gRPC", lambda scene: no_collector(scene, "grpc")),
    fault_without("a collector that takes and never answers", never_answers),
    fault_without("the same, gRPC", lambda scene: never_answers(scene, "grpc")),
    Fault(
        "no collector, forked workers",
        no_collector_for_a_pool,
        "none",
        "none",
        "after 5 s of each worker, a line of each",
        within=IN_TIME,
        says=3,
    ),
    Fault("the collector killed with -9, back after 3 s", killed_and_back),
    Fault(
        "away for longer than the SDK tries",
        lambda scene: killed_and_back(scene, AWAY_SECONDS, WAITS_TO_THE_END),
        "all but those of that time",
        end="at once; two lines before",
        says=2,
    ),
    Fault("the backend down for a minute", backend_down),
    Fault(
        "the collector's disk queue full",
        queue_full,
        "as many as it holds",
        end="at once; two lines before",
        says=2,
    ),
    Fault("SIGTERM", lambda scene: signalled(scene, signal.SIGTERM), code=-signal.SIGTERM),
    Fault(
        "Ctrl-C",
        lambda scene: signalled(scene, signal.SIGINT),
        end="when the tool returns, as without us",
        code=-signal.SIGINT,
        last_line="KeyboardInterrupt",
    ),
    Fault("an exception", lambda scene: ends(scene, "raise"), code=1, last_line="Abort"),
    Fault("`sys.exit`", lambda scene: ends(scene, "exit"), code=3),
    Fault("`os._exit`", lambda scene: ends(scene, "os_exit"), SOME, SOME, code=4),
    Fault("SIGKILL", killed, SOME, SOME, code=-signal.SIGKILL),
    Fault("forked workers", lambda scene: forked(scene, "fork")),
    Fault("forked workers, gRPC", lambda scene: forked(scene, "fork", "grpc")),
    Fault("forked workers that get SIGTERM", lambda scene: forked(scene, "terminate")),
]


class Measured(Rows[Outcome]):
    """All faults, six at a time: they mostly wait. The longest begin first."""

    def __init__(self, folder: Path, at_the_end: ExitStack) -> None:
        super().__init__()
        self._folder, self._at_the_end = folder, at_the_end
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(self._run, sorted(range(len(FAULTS)), key=self._order)))

    @staticmethod
    def _order(index: int) -> bool:
        return FAULTS[index].run not in (backend_down, queue_full)

    def _run(self, index: int) -> None:
        fault = FAULTS[index]
        self.note(fault, lambda: fault.run(Scene(self._folder / str(index), self._at_the_end)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with ExitStack() as at_the_end:
        yield Measured(tmp_path_factory.mktemp("faults"), at_the_end)


each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@each_fault
def test_what_arrives(fault: Fault, measured: Measured) -> None:
    """P70, P71: spans and tokens, sent against arrived."""
    outcome = measured[fault]
    print(f"spans {outcome.spans} of {outcome.sent_spans}, tokens {outcome.tokens:.0f} of {outcome.sent.input}")
    check(fault.spans, outcome.sent_spans, outcome.spans, outcome.some_spans)
    check(fault.tokens, outcome.sent.input, outcome.tokens, outcome.some_tokens)


def check(share: str, sent: float, arrived: float, some: Range) -> None:
    match share:
        case "all":
            assert arrived == sent
        case "none":
            assert arrived == 0
        case _:
            assert some[0] <= arrived <= some[1]
            assert some[0] > 0


@each_fault
def test_how_the_program_ends(fault: Fault, measured: Measured) -> None:
    """As without us: the same code, in time, and its own words on stderr; of an exporter or of us few, or none."""
    outcome = measured[fault]
    print(f"{outcome.ending:.1f} s, code {outcome.code}, {len(outcome.lines)} lines")
    assert outcome.code == fault.code
    assert outcome.ending < fault.within
    of_exports = [line for line in outcome.lines if "export" in line or line.startswith("otel_smol")]
    assert len(of_exports) <= fault.says
    if fault.last_line:
        assert outcome.lines[0].startswith("Traceback")
        assert outcome.lines[-1].startswith(fault.last_line)
    else:
        assert list(outcome.lines) == of_exports


def test_the_runs_do_not_wait(measured: Measured) -> None:
    """Without a collector, or with a silent one, the runs take no longer than else, not one of them."""
    healthy = measured[FAULTS[0]].working
    for fault in FAULTS[1:6]:
        working = measured[fault].working
        print(f"{min(working):.2f} to {max(working):.2f} s, else {min(healthy):.2f} to {max(healthy):.2f} s")
        assert min(working) < min(healthy) + 1, fault.name
        assert max(working) < max(healthy) + EXIT_SECONDS, fault.name  # as an export takes more


def test_what_the_sdk_alone_would_do(measured: Measured) -> None:
    """The control: its end takes longer than ours, and it says each retry of each signal."""
    ours, alone = measured[FAULTS[1]], measured[FAULTS[2]]
    assert alone.ending > ours.ending + 1
    assert len(alone.lines) >= 4


def test_the_document_has_the_table() -> None:
    """docs/backends.md: a row for each fault, and no other."""
    _, _, text = DOCUMENT.read_text().partition("\n| what happens |")
    table, _, _ = text.partition("\n\n")
    assert table.splitlines()[2:] == [fault.row for fault in FAULTS]
