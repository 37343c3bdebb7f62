"""`compose.yaml`, read by the real docker-compose. Its `config` needs no engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .programs import ROOT, require, run

COMPOSE = ROOT / "compose.yaml"
ONE_WRITER = ROOT / "deploy" / "one-writer.yaml"


def compose_config(*files: Path) -> subprocess.CompletedProcess[str]:
    arguments = [part for file in files for part in ("-f", str(file))]
    return run([require("docker-compose"), *arguments, "config", "--format", "json"])


def services(*files: Path) -> dict[str, Any]:
    done = compose_config(*files)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_docker_compose_takes_the_file() -> None:
    assert set(services(COMPOSE)) == {
        "collector",
        "collector-health",
        "prometheus",
        "tempo",
        "grafana",
        "volumes-ready",
    }


WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    "misspelt key": ({"services": {"grafana": {"imagee": "x"}}}, "imagee"),
    "unknown service": ({"services": {"grafana": {"depends_on": ["loki"]}}}, "loki"),
    "unknown volume": ({"services": {"grafana": {"volumes": ["grafana-dta:/somewhere"]}}}, "grafana-dta"),
    "wrong type": ({"services": {"grafana": {"ports": "3000"}}}, "ports"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_docker_compose_refuses_a_mistake(wrong: str, tmp_path: Path) -> None:
    """The control of the test above."""
    content, named = WRONG[wrong]
    overlay = tmp_path / "wrong.yaml"
    overlay.write_text(json.dumps(content))
    done = compose_config(COMPOSE, overlay)
    assert done.returncode != 0
    assert named in done.stderr


def test_images_are_pinned() -> None:
    """A tag with three numbers, never `latest`: what was tested is what starts."""
    for name, service in services(COMPOSE).items():
        tag = service["image"].rpartition(":")[2]
        assert len([part for part in tag.lstrip("v").split(".") if part.isdigit()]) == 3, name


def test_every_service_that_stays_says_whether_it_is_healthy() -> None:
    """The collector's own image has nothing to ask with; its neighbour, in the same network, does it."""
    found = services(COMPOSE)
    without = {name for name, service in found.items() if "healthcheck" not in service}
    assert without == {"collector", "volumes-ready"}
    assert found["collector-health"]["network_mode"] == "service:collector"


def test_ports_are_on_loopback_only() -> None:
    """Grafana asks for no password in this stack."""
    ports = [port for service in services(COMPOSE).values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    assert {port["published"] for port in ports} == {"3000", "3200", "4317", "4318", "9090"}


def test_files_that_are_mounted_exist_and_cannot_be_written() -> None:
    for name, service in services(COMPOSE, ONE_WRITER).items():
        binds = [volume for volume in service.get("volumes", []) if volume["type"] == "bind"]
        assert all(volume["read_only"] for volume in binds), name
        sources = {Path(volume["source"]).relative_to(ROOT) for volume in binds}
        assert {s for s in sources if s.parts[0] != "grafana" and not (ROOT / s).exists()} == set(), name


def test_data_survive_a_new_container() -> None:
    """Queue, series, traces and Grafana's own data lie in named volumes."""
    found = services(COMPOSE)
    for name in ("collector", "prometheus", "tempo", "grafana"):
        assert [v for v in found[name]["volumes"] if v["type"] == "volume"], name


def test_the_one_writer_form_of_the_stack() -> None:
    """The override starts the collector with the part and lets Prometheus scrape it."""
    found = services(COMPOSE, ONE_WRITER)
    assert found["collector"]["command"] == [
        "--config=/etc/otelcol/collector-config.yaml",
        "--config=/etc/otelcol/collector/one-writer.yaml",
    ]
    assert found["collector"]["environment"]["OTELCOL_TRACES_ENDPOINT"] == "http://tempo:4318"
    assert "/etc/prometheus/scrape.d/sums.yml" in {v["target"] for v in found["prometheus"]["volumes"]}


def test_the_collector_takes_the_variables_of_the_stack() -> None:
    """The shipped configuration with the very environment of the container."""
    found = services(COMPOSE, ONE_WRITER)["collector"]
    files = [ROOT / option.removeprefix("--config=/etc/otelcol/") for option in found["command"]]
    done = run([require("otelcol-contrib"), "validate", *(f"--config={f}" for f in files)], found["environment"])
    assert done.returncode == 0, done.stderr
