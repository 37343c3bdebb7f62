"""Every shipped collector file, read by the real collector, and for each check one that must fail."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_smol import semconv

from .programs import CONFIG, PARTS, require, run

# What docs/backends.md tells people to start.
FORMS: dict[str, tuple[str, ...]] = {
    "push": (),
    "one writer": ("one-writer",),
    "metrics from spans": ("span-metrics",),
    "content as events": ("logs",),
    "tail sampling": ("tail-sampling",),
    "metrics from spans, tail sampling": ("span-metrics", "tail-sampling"),
    "agent of a gateway": ("gateway-agent",),
    "agent of a gateway, one writer": ("gateway-agent", "one-writer"),
    "gateway": ("gateway", "tail-sampling"),
}
PLAIN_FORMS = [form for form, parts in FORMS.items() if "gateway-agent" not in parts]


def files(form: str) -> list[Path]:
    return [CONFIG, *(PARTS / f"{part}.yaml" for part in FORMS[form])]


def refused(program: str, paths: Sequence[Path]) -> str:
    """What the collector has against the files; empty when it takes them."""
    done = run([program, "validate", *(f"--config={path}" for path in paths)])
    return "" if done.returncode == 0 else done.stderr or "refused without a word"


def resolved(*paths: Path, **variables: str) -> dict[str, Any]:
    """The configuration as the collector understands it, with every default and variable."""
    command = [require("otelcol-gateway"), "print-config", "--format=json", "--mode=unredacted"]
    done = run([*command, *(f"--config={path}" for path in paths)], variables)
    assert done.returncode == 0, done.stderr
    config: dict[str, Any] = json.loads(done.stdout)
    return config


@pytest.mark.parametrize("form", FORMS)
def test_the_collector_takes_every_form(form: str) -> None:
    """P75: the files name current components only and are complete."""
    assert refused(require("otelcol-gateway"), files(form)) == ""


@pytest.mark.parametrize("form", PLAIN_FORMS)
def test_the_smaller_collector_takes_every_form_without_load_balancing(form: str) -> None:
    assert refused(require("otelcol-contrib"), files(form)) == ""


def test_every_part_is_in_a_form() -> None:
    assert {part for parts in FORMS.values() for part in parts} == {path.stem for path in PARTS.glob("*.yaml")}


WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    "unknown component": ({"exporters": {"otlp_htttp/traces": {}}}, "otlp_htttp"),
    "misspelt key": ({"exporters": {"otlp_http/traces": {"sending_queue": {"queue_sizze": 1}}}}, "queue_sizze"),
    "unknown function": (
        {"processors": {"transform/status": {"trace_statements": ["replace_patern(span.name, 'a', 'b')"]}}},
        "replace_patern",
    ),
    "undefined member of a pipeline": (
        {"service": {"pipelines": {"traces": {"exporters": ["otlp_http/elsewhere"]}}}},
        "otlp_http/elsewhere",
    ),
    "wrong type": ({"processors": {"memory_limiter": {"limit_percentage": "much"}}}, "limit_percentage"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_collector_refuses_a_mistake(wrong: str, tmp_path: Path) -> None:
    """The control of the tests above: each kind of mistake is seen and named."""
    content, named = WRONG[wrong]
    overlay = tmp_path / "wrong.yaml"
    overlay.write_text(json.dumps(content))
    assert named in refused(require("otelcol-contrib"), [CONFIG, overlay])


@pytest.mark.parametrize("part", sorted(path.stem for path in PARTS.glob("*.yaml")))
def test_the_collector_refuses_a_mistake_in_each_part(part: str, tmp_path: Path) -> None:
    """A part in which the first name of a component is misspelt is refused: its content is really read."""
    text = (PARTS / f"{part}.yaml").read_text()
    name = re.search(r"^  (\w+)(/\w+)?:$", text, re.MULTILINE)
    assert name is not None
    wrong = tmp_path / f"{part}.yaml"
    wrong.write_text(text.replace(f"  {name[1]}", f"  {name[1]}x", 1))
    assert f"{name[1]}x" in refused(require("otelcol-gateway"), [CONFIG, wrong])


@pytest.mark.parametrize("form", FORMS)
def test_memory_limiter_is_first_in_every_pipeline_that_receives(form: str) -> None:
    pipelines = resolved(*files(form))["service"]["pipelines"]
    receiving = {name: p for name, p in pipelines.items() if p["receivers"] == ["otlp"]}
    assert {name: p["processors"][0] for name, p in receiving.items()} == dict.fromkeys(receiving, "memory_limiter")


@pytest.mark.parametrize("form", FORMS)
def test_every_exporter_that_sends_has_its_queue_on_disk(form: str) -> None:
    config = resolved(*files(form))
    used = {name for p in config["service"]["pipelines"].values() for name in p["exporters"]}
    sending = {name: e for name, e in config["exporters"].items() if name in used and e.get("sending_queue")}
    assert {name: e["sending_queue"]["storage"] for name, e in sending.items()} == dict.fromkeys(
        sending, "file_storage/queue"
    )
    assert {e["retry_on_failure"]["max_elapsed_time"] for e in sending.values()} == {0}


def test_nothing_but_loopback_by_default() -> None:
    """P75: listening for other hosts is somebody's decision."""
    config = resolved(CONFIG)
    protocols = config["receivers"]["otlp"]["protocols"]
    assert protocols["grpc"]["endpoint"] == "localhost:4317"
    assert protocols["http"]["endpoint"] == "localhost:4318"
    assert config["extensions"]["health_check"]["endpoint"] == "localhost:13133"


def test_a_gateway_listens_for_other_hosts() -> None:
    protocols = resolved(CONFIG, PARTS / "gateway.yaml")["receivers"]["otlp"]["protocols"]
    assert [protocols[p]["endpoint"] for p in ("grpc", "http")] == ["0.0.0.0:4317", "0.0.0.0:4318"]


def test_every_variable_in_the_files_is_documented_at_their_top() -> None:
    """A variable that nobody can find might as well be a constant."""
    base = CONFIG.read_text()
    for path in (CONFIG, *PARTS.glob("*.yaml")):
        text = path.read_text()
        comments = base.partition("receivers:")[0] + re.split(r"^\w+:$", text, maxsplit=1, flags=re.MULTILINE)[0]
        assert {v for v in re.findall(r"env:(\w+)", text) if v not in comments} == set(), path.name


def test_variables_change_what_they_say() -> None:
    config = resolved(
        CONFIG,
        PARTS / "gateway-agent.yaml",
        OTELCOL_TRACES_ENDPOINT="http://traces.invalid:1",
        OTELCOL_METRICS_ENDPOINT="http://metrics.invalid:2",
        OTELCOL_STORAGE_DIR="/somewhere/else",
        OTELCOL_QUEUE_SIZE="7000",
        OTELCOL_GATEWAYS="[one.invalid:3, two.invalid:4, three.invalid:5]",
    )
    assert config["exporters"]["otlp_http/traces"]["endpoint"] == "http://traces.invalid:1"
    assert config["exporters"]["otlp_http/metrics"]["endpoint"] == "http://metrics.invalid:2"
    assert config["exporters"]["otlp_http/metrics"]["sending_queue"]["queue_size"] == 7000
    assert config["extensions"]["file_storage/queue"]["directory"] == "/somewhere/else"
    gateways = config["exporters"]["load_balancing"]["resolver"]["static"]["hostnames"]
    assert gateways == ["one.invalid:3", "two.invalid:4", "three.invalid:5"]


def test_the_status_is_masked_by_all_the_patterns_of_the_attributes() -> None:
    """`redaction` does not look at it, so each pattern stands there twice."""
    processors = resolved(CONFIG)["processors"]
    (group,) = processors["transform/status"]["trace_statements"]
    found = [re.fullmatch(r'replace_pattern\(span\.status\.message, (".+"), "\*{4}"\)', s) for s in group["statements"]]
    patterns = [json.loads(each[1]) for each in found if each]
    assert len(patterns) == len(found)
    assert patterns == processors["redaction"]["blocked_values"]


MASKS = {"traces": {"redaction", "transform/status"}, "logs": {"redaction"}, "metrics": set()}
"""What has text in it goes through these. Metrics have none."""


@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_is_sent_on_goes_past_the_masks(form: str) -> None:
    for name, pipeline in resolved(*files(form))["service"]["pipelines"].items():
        if any(exporter.startswith(("otlp_http", "load_balancing")) for exporter in pipeline["exporters"]):
            assert MASKS[name.partition("/")[0]] <= set(pipeline["processors"]), name


def made_from_spans() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = resolved(*files("metrics from spans"))["connectors"]["signal_to_metrics"]["spans"]
    return found


def test_metrics_from_spans_are_those_of_the_instrumentation() -> None:
    """Name, unit, buckets and labels as in `otel_smol.semconv`, so dashboards do not see the difference."""
    for made in made_from_spans():
        if made["name"] in semconv.CONVENTION_METRICS:
            assert made["unit"] == semconv.CONVENTION_METRICS[made["name"]], made["name"]
            continue
        metric = semconv.METRICS[made["name"]]
        assert made["unit"] == metric.unit, metric.name
        assert {a["key"] for a in made["attributes"]} == set(metric.attributes), metric.name
        assert tuple((made["histogram"] or {}).get("buckets", ())) == metric.buckets, metric.name


def test_what_is_made_from_spans_is_not_taken_from_the_instrumentation_too() -> None:
    """Both would double every total."""
    config = resolved(*files("metrics from spans"))
    conditions = json.dumps(config["processors"]["filter/made_from_spans"])
    patterns = [p.replace("\\\\\\\\", "\\") for p in re.findall(r'metric\.name, \\"(.+?)\\"\)', conditions)]
    dropped = [re.compile(p) for p in patterns]
    assert dropped
    names = {made["name"] for made in made_from_spans()}
    assert {n for n in names if not any(p.search(n) for p in dropped)} == set()
    kept = (semconv.METRICS.keys() | semconv.CONVENTION_METRICS.keys()) - names
    assert {n for n in kept if any(p.search(n) for p in dropped)} == set()


def test_what_is_not_made_from_spans_is_named_at_the_top_of_the_file() -> None:
    """All of it: whoever misses a metric finds it there."""
    words = (PARTS / "span-metrics.yaml").read_text().replace("\n# ", " ")
    named = set(words.partition("Not made: ")[2].partition(". ")[0].split(", "))
    made = {each["name"] for each in made_from_spans()}
    assert named == (semconv.METRICS.keys() | semconv.CONVENTION_METRICS.keys()) - made


def test_the_cap_of_the_step_number_is_the_instrumentation_s() -> None:
    statements = json.dumps(resolved(*files("metrics from spans"))["processors"]["transform/last_step_number"])
    assert re.findall(r"\d+", statements) == [str(semconv.LAST_STEP_NUMBER)] * 2


def test_the_two_parts_that_add_up_do_it_in_the_same_way() -> None:
    one, other = (resolved(*files(form)) for form in ("one writer", "metrics from spans"))
    for kind, name in (
        ("processors", "batch/in_line"),
        ("processors", "transform/one_writer"),
        ("processors", "delta_to_cumulative"),
        ("exporters", "prometheus/sums"),
    ):
        assert one[kind][name] == other[kind][name], name
