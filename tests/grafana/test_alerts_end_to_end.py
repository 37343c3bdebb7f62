"""A runaway agent, end to end: `opentelemetry-instrument`, collector, Prometheus, Alertmanager, a webhook on loopback.

The shipped files, with ports on loopback and short times. The alert has to arrive while the run goes on.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grafana import alerts
from grafana.build import names
from tests import programs
from tests.grafana.rig import PATIENCE, Prometheus
from tests.stack.ports import free_ports
from tests.stack.programs import PARTS, ROOT, Collector, Process, require, wait_for
from tests.stack.test_prometheus import flags_of_the_stack, with_targets

RUNAWAY = """
import time
from types import SimpleNamespace
from smolagents import CodeAgent
from tests.scripted import RawModel, Script, agent, make_tool, step_replies

def search(n):
    time.sleep({pause})
    return "word " * 400

script = Script(*step_replies(CodeAgent, {steps}))
nothing_cached = SimpleNamespace(usage=SimpleNamespace(prompt_tokens_details=SimpleNamespace(cached_tokens=0)))
model = RawModel(script, nothing_cached)
tools = [make_tool(script.truth, does=search)]
subject = agent(CodeAgent, script, tools=tools, model=model, name="{name}", max_steps={steps})
subject.run("the task")
print(script.truth.input_tokens)
"""
"""Every step adds about 500 tokens, and all of them are sent again."""
BUDGET = WINDOW = 20_000

Alert = dict[str, Any]


class Webhook:
    """What a team has at the other end: takes alerts, and remembers when they came."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        taken = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                taken.extend({**alert, "came": time.time()} for alert in message["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"

    def __enter__(self) -> Webhook:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, agent: str, name: str = alerts.OVER_BUDGET) -> list[Alert]:
        """All that came for an agent."""
        wanted = {alerts.AGENT: agent, "alertname": name}
        return [alert for alert in list(self.alerts) if wanted.items() <= alert["labels"].items()]


@dataclass
class World:
    """What runs."""

    collector: Collector
    prometheus: Prometheus
    webhook: Webhook


def start_alertmanager(folder: Path, ends: ExitStack, webhook: Webhook) -> int:
    """With the shipped routes and inhibitions, and no patience."""
    text = (ROOT / "deploy" / "alertmanager.yml").read_text()
    text = text.replace("http://localhost:5001/alerts", webhook.url).replace("10s", "1s").replace(": 1m", ": 1s")
    config = folder / "alertmanager.yml"
    config.write_text(text)
    (port,) = free_ports(1)
    own = [f"--config.file={config}", f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address="]
    process = Process(
        [require("alertmanager"), *own, f"--web.listen-address=127.0.0.1:{port}"], folder / "alertmanager.log"
    )
    start(process, ends, f"http://127.0.0.1:{port}/-/ready")
    return port


def start_prometheus(folder: Path, ends: ExitStack, own_metrics: int, alertmanager_port: int) -> Prometheus:
    """With the flags of compose.yaml, the file of deploy/ and the shipped rules, evaluated every second."""
    rules = alerts.RULES.read_text().replace("interval: 15s", "interval: 1s").replace("interval: 1m", "interval: 1s")
    (folder / "rules").mkdir()
    (folder / "rules" / alerts.RULES.name).write_text(rules)
    config = with_targets(ROOT / "deploy" / "prometheus.yml", folder, port_8888=own_metrics)
    target = f"127.0.0.1:{alertmanager_port}"
    config.write_text(
        f"{config.read_text()}\nalerting: {{alertmanagers: [{{static_configs: [{{targets: ['{target}']}}]}}]}}\n"
    )
    ours = {"--config.file": str(config), "--storage.tsdb.path": str(folder / "prometheus")}
    flags = [f"{name}={ours[name]}" if (name := f.partition("=")[0]) in ours else f for f in flags_of_the_stack()]
    (port,) = free_ports(1)
    process = Process(
        [require("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"
    )
    start(process, ends, f"http://127.0.0.1:{port}/-/ready")
    return Prometheus(f"http://127.0.0.1:{port}")


def start(process: Process, ends: ExitStack, ready: str) -> None:
    ends.callback(process.kill)
    process.start()
    process.wait_until_ready(ready, PATIENCE)


def start_world(folder: Path, ends: ExitStack, *parts: Path) -> World:
    """Everything but the agents."""
    webhook = ends.enter_context(Webhook())
    port = start_alertmanager(folder, ends, webhook)
    collector = Collector(folder / "collector", program=require("otelcol-contrib"), parts=parts)
    own = int(urllib.parse.urlsplit(collector.own_metrics_url).port or 0)
    if parts:
        (folder / "scrape.d").mkdir()
        shipped = with_targets(ROOT / "deploy" / "scrape-sums.yml", folder, port_8889=collector.scrape)
        shipped.rename(folder / "scrape.d" / shipped.name)
    prometheus = start_prometheus(folder, ends, own, port)
    collector.process.variables = {**collector.process.variables, "OTELCOL_METRICS_ENDPOINT": prometheus.otlp}
    ends.callback(collector.process.stop)
    collector.start()
    return World(collector, prometheus, webhook)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as ends:
        yield start_world(tmp_path_factory.mktemp("alerts"), ends)


def launch(world: World, folder: Path, name: str, steps: int, pause: float, **variables: str) -> subprocess.Popen[str]:
    folder.mkdir()
    settings = {
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_SMOL_TOKEN_BUDGET": str(BUDGET),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SMOL_EXIT_SECONDS": "60",  # a busy machine is no reason to lose the last export
        **variables,
    }
    source = RUNAWAY.format(name=name, steps=steps, pause=pause)
    return programs.start(folder, source, world.collector.otlp, **settings)


def ended(program: subprocess.Popen[str]) -> int:
    """Waits for a program; the input tokens that its model counted."""
    out, err = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, err[-2000:]
    return int(out.split()[-1])


def wait_for_alert(world: World, agent: str, name: str, program: subprocess.Popen[str] | None = None) -> None:
    """Waits until it has come; if a program is given, it must still run then."""
    wait_for(lambda: bool(world.webhook.of(agent, name)) or _over(program), f"{name} of {agent}", PATIENCE)
    assert not _over(program), program and program.communicate()


def _over(program: subprocess.Popen[str] | None) -> bool:
    return program is not None and program.poll() is not None


def the_one_alert(world: World, agent: str) -> Alert:
    """A message tells again of all that fires in its group; an alert that began to fire once has one beginning."""
    told = world.webhook.of(agent)
    assert len({alert["startsAt"] for alert in told}) == 1, told
    assert {alert["status"] for alert in told} == {"firing"}
    return told[0]


def crossings(world: World, agent: str) -> float | None:
    return world.prometheus.value(f'max({alerts.CROSSINGS}{{{alerts.AGENT}="{agent}"}})')


def test_the_alert_arrives_while_the_run_goes_on_and_names_the_agent(world: World, tmp_path: Path) -> None:
    """It fires once, however long the run goes on above its budget. Then every metric of the rules is there."""
    variables = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_SMOL_CONTEXT_WINDOW": str(WINDOW)}
    program = launch(world, tmp_path / "long", "runaway", 2000, 0.2, **variables)  # for longer than we wait
    try:
        wait_for_alert(world, "runaway", alerts.OVER_BUDGET, program)
        wait_for_alert(world, "runaway", alerts.WINDOW, program)
        time.sleep(3)  # evaluations, exports and groups go on
        assert program.poll() is None, program.communicate()
    finally:
        program.terminate()
        program.communicate(timeout=PATIENCE)
    alert = the_one_alert(world, "runaway")
    assert alert["labels"] == {
        "alertname": alerts.OVER_BUDGET,
        "severity": "warning",
        "job": "shop",
        alerts.AGENT: "runaway",
    }
    assert alert["annotations"]["summary"] == "Agent runaway of shop: a run has passed its budget of 20k input tokens"
    assert alert["annotations"]["dashboard"].endswith("&var-service=shop&var-agent=runaway")
    assert f"> {BUDGET}" in alert["annotations"]["trace_query"]
    used = {word for each in alerts.ALERTS for word in re.findall(r"\w+", each.expr)} & names.series()
    assert len(used) > 10
    there = f'count by (__name__) ({{__name__=~"{"|".join(used)}"}})'

    def absent() -> set[str]:
        return used - {each["metric"]["__name__"] for each in world.prometheus.instant(there)}

    wait_for(lambda: not absent(), lambda: f"{absent()}", PATIENCE)


def test_a_single_short_script_over_its_budget(world: World, tmp_path: Path) -> None:
    """It exports once, when it ends."""
    tokens = ended(launch(world, tmp_path / "script", "script", 15, 0))
    assert tokens > BUDGET
    wait_for_alert(world, "script", alerts.OVER_BUDGET)
    time.sleep(3)
    the_one_alert(world, "script")


def test_a_quiet_agent(world: World, tmp_path: Path) -> None:
    """The control: its telemetry is there, the rules are evaluated, and nothing comes."""
    tokens = ended(launch(world, tmp_path / "quiet", "quiet", 3, 0))
    assert tokens < BUDGET
    wait_for(lambda: crossings(world, "quiet") == 0, "the quiet agent's counter", PATIENCE)
    control = ended(launch(world, tmp_path / "control", "control", 15, 0))
    assert control > BUDGET
    wait_for_alert(world, "control", alerts.OVER_BUDGET)
    assert {alert["labels"][alerts.AGENT] for alert in world.webhook.alerts} <= {"runaway", "script", "control"}


def test_a_script_where_the_collector_adds_processes_up(tmp_path: Path) -> None:
    """The counter is scraped from the collector and knows no process; the budget is pushed by the script itself."""
    with ExitStack() as ends:
        world = start_world(tmp_path, ends, PARTS / "one-writer.yaml")
        assert ended(launch(world, tmp_path / "quiet", "quiet", 3, 0)) < BUDGET
        assert ended(launch(world, tmp_path / "script", "script", 15, 0)) > BUDGET
        wait_for_alert(world, "script", alerts.OVER_BUDGET)
        time.sleep(3)
        the_one_alert(world, "script")
        wait_for(lambda: crossings(world, "quiet") == 0, "the quiet agent's counter", PATIENCE)
        assert {alert["labels"][alerts.AGENT] for alert in world.webhook.alerts} == {"script"}
