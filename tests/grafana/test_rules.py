"""The alert rules: what promtool says of them, and that rules, thresholds, texts and documents are one thing."""

from __future__ import annotations

import fnmatch
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana import alerts
from grafana.alerts import ALERTS, Alert
from grafana.build import names
from otel_smol import semconv as sc
from tests.conftest import Observed
from tests.grafana import answers, fleet
from tests.stack.programs import ROOT, require, run

TESTS = sorted(alerts.RULES.parent.glob("*.test.yaml"))
FILES = [alerts.RULES, alerts.OFF_BY_DEFAULT]
README = ROOT / "grafana" / "README.md"
RUNBOOK = (ROOT / "grafana" / "runbook.md").read_text()

by_name = pytest.mark.parametrize("alert", ALERTS, ids=[alert.name for alert in ALERTS])


def rules(path: Path) -> dict[str, dict[str, Any]]:
    content = yaml.safe_load(path.read_text())
    return {rule.get("alert") or rule["title"]: rule for group in content["groups"] for rule in group["rules"]}


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    return run([require("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(path)])


def unit_test(path: Path) -> subprocess.CompletedProcess[str]:
    return run([require("promtool"), "test", "rules", str(path)])


# --- promtool ---------------------------------------------------------------------------------------------------------


def test_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    """What is committed is what `python -m grafana.alerts` makes."""
    assert alerts.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_promtool_takes_the_rules(path: Path) -> None:
    done = lint(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("expr: |-", "exprr: |-"), ("last_over_time(", "last_over_tim("), ("{{ $value", "{{ $valu"), ("1d", "1x")],
)
def test_promtool_refuses_a_mistake(right: str, wrong: str, tmp_path: Path) -> None:
    """The control of the test above."""
    text = alerts.RULES.read_text()
    assert right in text
    copy = tmp_path / alerts.RULES.name
    copy.write_text(text.replace(right, wrong, 1))
    assert lint(copy).returncode != 0


def test_promtool_refuses_a_rule_that_is_there_twice(tmp_path: Path) -> None:
    """The control of the linter."""
    content = yaml.safe_load(alerts.RULES.read_text())
    content["groups"][0]["rules"].append(content["groups"][0]["rules"][0])
    copy = tmp_path / alerts.RULES.name
    copy.write_text(yaml.safe_dump(content))
    assert lint(copy).returncode != 0


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name.removesuffix(".test.yaml"))
def test_situations(path: Path) -> None:
    """Firing, silent, once and resolved, in the situations that the file names."""
    done = unit_test(path)
    assert done.returncode == 0, done.stdout + done.stderr


@by_name
def test_every_alert_is_tested(alert: Alert) -> None:
    """One file per alert: it fires with its whole text, begins to fire once, and is silent where it should be."""
    words = alert.uid.removeprefix("otel-smol-")
    text = (alerts.RULES.parent / f"{words}.test.yaml").read_text()
    content = yaml.safe_load(text)
    fired = [
        case
        for test in content["tests"]
        for case in test.get("alert_rule_test", [])
        if case["alertname"] == alert.name and case.get("exp_alerts")
    ]
    assert fired
    assert all(case["exp_alerts"][0]["exp_annotations"].keys() == alert.annotations.keys() for case in fired)
    assert any(test["name"].startswith("silent - ") for test in content["tests"])
    assert "unless ALERTS" in text


MUTATIONS = {
    # The form of totals
    "a pause counts as a birth": ("run-over-budget", r"\[1d\] offset 10m", "[5m] offset 10m"),
    "a pause counts as a birth, in buckets": ("run-token-spike", r"\[1d\] offset 10m", "[5m] offset 10m"),
    "a pause counts as a birth, for usage": ("calls-without-usage", r"\[1d\] offset 1h", "[5m] offset 1h"),
    "a restart hides what comes after it": (
        "run-over-budget",
        r" >= 0 or last_over_time",
        " or last_over_time",
    ),
    "plain increase": (
        "run-over-budget",
        r"\(last_over_time\((\w+_total)\[10m\]\) - .* or last_over_time\(\w+\[10m\]\)\)",
        r"(increase(\1[10m]))",
    ),
    "plain increase, for usage": (
        "calls-without-usage",
        r"\(last_over_time\((\w+_total)\[1h\]\) - .* or last_over_time\(\w+\[1h\]\)\)",
        r"(increase(\1[1h]))",
    ),
    "the lifetime's total": (
        "run-over-budget",
        r" - last_over_time\(\w+_total\[1d\] offset 10m\) >= 0 or .*\) > 0",
        ") > 0",
    ),
    # Over budget
    "only the crossing": ("run-over-budget", r"input_tokens > smolagents_run_token_budget\)", "input_tokens > 1e12)"),
    "only the run that goes on": ("run-over-budget", r"\[10m\]\)\) > 0", "[10m])) > 1e12"),
    # Spike
    "factor 1": ("run-token-spike", r"3 \* histogram_quantile", "0.5 * histogram_quantile"),
    "factor 10": ("run-token-spike", r"3 \* histogram_quantile", "10 * histogram_quantile"),
    "no minimum of runs": ("run-token-spike", ">= 20", ">= 0"),
    "a large minimum of runs": ("run-token-spike", ">= 20", ">= 30"),
    "services mixed": ("run-token-spike", r" on \(job, gen_ai_agent_name\)", " on (gen_ai_agent_name)"),
    "no live runs": ("run-token-spike", r"max_over_time\(smolagents_active_run_max_input_tokens", "max_over_time(none"),
    "no mean": ("run-token-spike", r"_sum\[", "_none["),
    "no largest": ("run-token-spike", r"histogram_quantile\(1,.*", "vector(0)"),
    "the bucket's upper end": ("busy-hour-after-idle-week", r" / 2\n", " * 8\n"),
    # Forecast
    "forecasts from the start": ("run-forecast-over-budget", r"> 0\.5 \*", "> 0 *"),
    "forecasts at the end only": ("run-forecast-over-budget", r"> 0\.5 \*", "> 0.95 *"),
    "forecast beside the crossing": ("run-forecast-over-budget", r"<= smolagents_run_token_budget", "<= 1e12"),
    "a forecast that wavers": ("run-forecast-over-budget", r"keep_firing_for: 5m", "keep_firing_for: 0s"),
    # Shares
    "share 0.9": ("replay-share-high", r"> 0\.7\n", "> 0.9\n"),
    "share 0.08": ("replay-share-high", r"> 0\.7\n", "> 0.08\n"),
    "few tokens": ("replay-share-high", "> 50000", "> 0"),
    "many tokens": ("replay-share-high", "> 50000", "> 500000"),
    "a share that wavers": ("replay-share-high", r"keep_firing_for: 30m", "keep_firing_for: 0s"),
    "overpay 5": ("overpay-high", r"> 12\n", "> 5\n"),
    "overpay 20": ("overpay-high", r"> 12\n", "> 20\n"),
    "overpay of small histories": ("overpay-high", r"> 0\.5\n", "> 0.05\n"),
    "cached tokens are as the others": ("mostly-cached", "smolagents_history_cached_tokens_total", "none_total"),
    "cached share 0.3": ("mostly-cached", r"> 0\.5\n( +for: 5m)", r"> 0.3\n\1"),
    "cached share 0.95": ("mostly-cached", r"> 0\.5\n( +for: 5m)", r"> 0.95\n\1"),
    "cached tokens weigh nothing": ("mostly-cached", r"1 - \(1 - 0\.1\)", "1 - (1 - 0)"),
    "cached tokens weigh a half": ("mostly-cached", r"1 - \(1 - 0\.1\)", "1 - (1 - 0.5)"),
    "the cache is forgotten in a pause": ("mostly-cached", "1h", "10m"),
    "no spike of agents whose provider is silent": ("run-token-spike", r"\* 0 \+ 1\n", "* 0 + 1000\n"),
    # The others
    "window 0.6": ("context-window-nearly-full", r"> 0\.8'", "> 0.6'"),
    "window 1.2": ("context-window-nearly-full", r"> 0\.8'", "> 1.2'"),
    "a row of full windows": ("context-window-nearly-full", "keep_firing_for: 10m", "keep_firing_for: 0s"),
    "stalled after 10 minutes": ("run-stalled", r"20m", "10m"),
    "stalled though others work": ("run-stalled", r"unless on \(job, instance\)", "unless"),
    "stalled without usage": ("run-stalled", r"smolagents_calls_without_usage_total", "none_total"),
    "stalled though killed": ("run-stalled", r"and\n +smolagents_active_runs > 0\n", ""),
    "stalled as soon as it begins": ("run-stalled", r"and\n +smolagents_active_runs offset 20m > 0\n", ""),
    "gone after 5 minutes": ("telemetry-gone", r"\[15m\]", "[5m]"),
    "gone for ever": ("telemetry-gone", r"unless on", "and on"),
}


def try_rules(name: str, folder: Path, right: str = "", wrong: str = "") -> subprocess.CompletedProcess[str]:
    """Tests of one file against the rules that it names, with something replaced in them."""
    test = folder / f"{name}.test.yaml"
    test.write_text((alerts.RULES.parent / test.name).read_text())
    changed = 0
    for path in FILES:
        text, times = re.subn(right, wrong, path.read_text()) if right else (path.read_text(), 1)
        changed += times
        content = yaml.safe_load(text)
        for group in content["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule["alert"] in test.read_text()]
        copy = folder / path.relative_to(alerts.RULES.parent)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(yaml.safe_dump(content))
    assert changed
    return unit_test(test)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in MUTATIONS.values()}))
def test_nothing_but_the_change_breaks_it(name: str, tmp_path: Path) -> None:
    assert try_rules(name, tmp_path).returncode == 0


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_change_of_a_rule_breaks_its_test(mutation: str, tmp_path: Path) -> None:
    """The control of the situations: none of them passes whatever the rule says."""
    name, right, wrong = MUTATIONS[mutation]
    done = try_rules(name, tmp_path, right, wrong)
    assert done.returncode != 0
    assert "exp:" in done.stderr + done.stdout, done.stderr


# --- names ------------------------------------------------------------------------------------------------------------

WORDS = {
    *("sum", "min", "max", "count", "by", "on", "and", "or", "unless", "offset", "changes", "histogram_quantile"),
    *("last_over_time", "max_over_time", "min_over_time"),
}
"""All of PromQL that the rules use: nothing that an older Prometheus, Mimir or VictoriaMetrics would refuse."""


def words(expression: str) -> set[str]:
    return set(re.findall(r"[a-z_][a-z_0-9]*", re.sub(r"\b\d+[smhd]\b|\d[\d.]*", " ", expression)))


@by_name
def test_metrics_and_labels_are_emitted(alert: Alert) -> None:
    """P81: metrics only, and such as the instrumentation has."""
    used = words(alert.expr) - WORDS - names.labels()
    assert used
    assert used <= names.series()


@by_name
def test_no_process_and_no_run_in_an_alert(alert: Alert) -> None:
    """A label that names one would make an alert of every process."""
    outermost = alert.expr.partition("by (")[2].partition(")")[0].split(", ")
    assert set(outermost) <= {*alerts.SUBJECT, alerts.MODEL}
    assert not re.search(r"run_id|trace_id|conversation", alert.expr)
    assert "increase(" not in alert.expr


def test_the_form_of_totals_is_that_of_the_queries() -> None:
    """Every total looks for its beginning as alerts need it, none in the dashboards' way."""
    for alert in ALERTS:
        assert "[5m] offset" not in alert.expr
        assert alert.expr.count(f"[{alerts.GAP}] offset") == alert.expr.count(" >= 0 or last_over_time")


def test_buckets_double() -> None:
    """`largest / 2` in the spike rests on it."""
    buckets = sc.RUN_INPUT_TOKENS_METRIC.buckets
    assert all(upper == 2 * lower for lower, upper in itertools.pairwise(buckets))


def trace_query(alert: Alert) -> str:
    """As it arrives, with templates filled in."""
    return re.sub(r"\{\{.*?\}\}", lambda found: "200000" if "$value" in found[0] else "researcher", alert.traces)


def test_trace_queries_are_traceql() -> None:
    """P83, by Grafana's own grammar."""
    wrong = "{ span.gen_ai.agent.name = } | sum("
    *errors, control = answers.ask_node({"syntax": [*map(trace_query, ALERTS), wrong]})["syntax"]
    assert dict(zip([alert.name for alert in ALERTS], errors, strict=True)) == {alert.name: [] for alert in ALERTS}
    assert control


def test_trace_queries_ask_for_what_spans_have(observe: Callable[..., Observed]) -> None:
    """P83: on spans of real runs, together with the agent's name."""
    observed = observe(context_window=10_000)
    fleet.researcher()
    fleet.silent()
    spans = [dict(span.attributes or {}) for span in observed.spans]
    for alert in ALERTS:
        for condition in re.findall(r"\{([^{}]+)\}", trace_query(alert)):
            wanted = set(re.findall(r"span\.([a-z_.]+)", condition))
            assert any(wanted <= span.keys() for span in spans), alert.name
        summed = re.findall(r"(?:sum|select)\((.*)\)", trace_query(alert))
        for name in re.findall(r"span\.([a-z_.]+)", " ".join(summed)):
            assert any(name in span for span in spans), name


# --- thresholds and documents -----------------------------------------------------------------------------------------


def numbers(alert: Alert) -> set[str]:
    """Every number and duration that has a say in whether the alert fires."""
    found = set(re.findall(r"(?<![\w.])\d[\d.]*[smhd]?\b", alert.expr))
    return found | {alert.wait, alert.hold}


@by_name
def test_every_number_is_a_threshold(alert: Alert) -> None:
    """P82: all in one place. What is left is no threshold: above 0, the largest, the middle, half of a bucket."""
    own = {each.value for each in alerts.THRESHOLDS if alert.name in each.alerts or not each.alerts}
    structural = {"0", "0s", "1", "2", "0.5"} if alert.name == alerts.SPIKE else {"0", "0s"}
    assert numbers(alert) <= own | structural
    assert own - {alerts.GAP.value} <= numbers(alert)


@pytest.mark.parametrize("threshold", alerts.THRESHOLDS, ids=lambda threshold: threshold.name)
def test_every_threshold_is_documented(threshold: alerts.Threshold) -> None:
    """grafana/README.md has the table."""
    assert threshold.row() in README.read_text()


def test_every_file_that_has_thresholds_is_named() -> None:
    """Nobody changes one of them and takes it for all."""
    how_to = README.read_text().partition("**To change one**")[2].partition("**Links.**")[0]
    assert sorted(re.findall(r"^\| `(.+?)` \|", how_to, re.MULTILINE)) == sorted(
        str(path.relative_to(ROOT)) for path in alerts.files()
    )


def test_every_alert_is_in_the_readme() -> None:
    table = README.read_text().partition("## Alerts")[2]
    assert [alert.name for alert in ALERTS if f"| `{alert.name}` |" not in table] == []


def test_runbook_has_a_section_for_every_alert_and_no_other() -> None:
    sections = re.findall(r"^## (Smolagents\w+)$", RUNBOOK, re.MULTILINE)
    assert sorted(sections) == sorted(alert.name for alert in ALERTS)


@by_name
def test_annotations(alert: Alert) -> None:
    """A sentence, what it means, the dashboard, the runbook's section, the trace."""
    assert alert.annotations["runbook_url"] == f"{alerts.RUNBOOK}#{alert.name.lower()}"
    assert alert.annotations["dashboard"].startswith(f"{alerts.GRAFANA_URL}/d/otel-smol-")
    assert len(re.sub(r"\{\{.*?\}\}", "a name or number", alert.summary)) < 130
    assert alert.description.endswith(".")
    assert alert.severity in ("info", "warning")


def section(name: str) -> str:
    return RUNBOOK.partition(f"## {name}\n")[2].partition("\n## ")[0]


@by_name
def test_runbook_sections_say_what_to_do(alert: Alert) -> None:
    """What it means, what to look at, what to do, and when it is a false alarm."""
    text = section(alert.name)
    for part in ("**Means**", "**Look**", "**Do**", "**Quiet it**"):
        assert part in text, part


def test_high_shares_tell_new_from_replayed_from_cached() -> None:
    """In numbers, which the tests of the rules compare with what was sent; no other alert asks for them."""
    for alert in ALERTS:
        told = {number for number in (alerts.NEW, alerts.AGAIN, alerts.FROM_CACHE) if number in alert.description}
        assert len(told) == (3 if alert.name in (alerts.REPLAY, alerts.OVERPAY) else 0)


# --- Grafana ----------------------------------------------------------------------------------------------------------


def grafana_groups() -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load(alerts.GRAFANA.read_text())["groups"]


GRAFANA = rules(alerts.GRAFANA)


def test_grafana_has_the_same_rules_in_the_same_groups() -> None:
    ours = {group.name: (group.interval, [alert.name for alert in group.alerts]) for group in alerts.GROUPS}
    theirs = {g["name"]: (g["interval"], [rule["title"] for rule in g["rules"]]) for g in grafana_groups()}
    assert theirs == ours
    assert {(group["orgId"], group["folder"]) for group in grafana_groups()} == {(1, "otel_smol")}


@by_name
def test_grafana_rule_equals_the_rule(alert: Alert) -> None:
    """Expression, times and labels are those of the file that Prometheus loads; so are the texts, but for `$value`."""
    source = {name: rule for path in FILES for name, rule in rules(path).items()}[alert.name]
    rule = GRAFANA[alert.name]
    query, condition, *told = rule["data"]
    assert query["model"]["expr"] == source["expr"]
    assert (rule["for"], rule["keepFiringFor"]) == (source.get("for", "0s"), source.get("keep_firing_for", "0s"))
    assert rule["labels"] == source["labels"]
    in_grafana, in_prometheus = (
        {name: re.sub(number, "<number>", text) for name, text in texts.items()}
        for texts, number in (
            (rule["annotations"], r"\{\{ \$values\.[CDE]\.Value \| humanize \}\}"),
            (source["annotations"], r"\{\{ with printf `.*?\{\{ end \}\}"),
        )
    )
    assert {name: text.replace("$values.A.Value", "$value") for name, text in in_grafana.items()} == in_prometheus
    assert len(told) == in_prometheus["description"].count("<number>")
    assert rule["condition"] == condition["refId"] == "B"
    assert condition["model"]["expression"] == query["refId"] == "A"
    assert query["datasourceUid"] == "prometheus"
    assert query["model"]["instant"]


def test_grafana_asks_for_the_same_numbers() -> None:
    """In Prometheus' texts about one agent, in Grafana's rules by agent: else the same queries in the same order."""
    rule = GRAFANA[alerts.REPLAY]
    asked = [each["model"]["expr"].replace(" by (job, gen_ai_agent_name)", "") for each in rule["data"][2:]]
    source = rules(alerts.RULES)[alerts.REPLAY]["annotations"]["description"]
    found = re.findall(r"printf `(.*?)` \$labels\.job \$labels\.gen_ai_agent_name \| query", source)
    about = [re.sub(r"job=%\[1\]q, gen_ai_agent_name=%\[2\]q(, )?", "", each).replace("{}", "") for each in found]
    assert about == asked
    assert re.findall(r"\$values\.(\w)\.Value", rule["annotations"]["description"]) == ["C", "D", "E"]
    assert [each["refId"] for each in rule["data"]] == ["A", "B", "C", "D", "E"]


@by_name
def test_grafana_takes_the_rule(alert: Alert) -> None:
    """What its provisioning asks for; there is no validator but Grafana itself."""
    rule = GRAFANA[alert.name]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", rule["uid"])
    assert rule["title"]
    assert rule["data"]
    assert rule["noDataState"] in ("OK", "NoData", "Alerting", "KeepLast")
    assert rule["execErrState"] in ("OK", "Error", "Alerting", "KeepLast")
    assert rule.get("isPaused", False) is alert.off
    assert alert.dashboard in ("otel-smol-overview", "otel-smol-run", "otel-smol-ops")


def test_grafana_uids_are_unique() -> None:
    assert len({rule["uid"] for rule in GRAFANA.values()}) == len(ALERTS)


@by_name
def test_dollars_survive_provisioning(alert: Alert) -> None:
    """In labels every `$x`, in annotations every `${X}` would be read as an environment variable."""
    rule = GRAFANA[alert.name]
    assert "$" not in "".join(rule["labels"].values())
    assert "${" not in "".join(rule["annotations"].values())


# --- off by default ---------------------------------------------------------------------------------------------------


def test_prometheus_loads_the_default_rules_only() -> None:
    """What is off by default is out of reach of the pattern in deploy/prometheus.yml."""
    (pattern,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["rule_files"]
    folder = alerts.RULES.parent
    assert pattern == "/etc/prometheus/rules/*.rules.yaml"
    assert [path for path in folder.iterdir() if fnmatch.fnmatch(path.name, "*.rules.yaml")] == [alerts.RULES]
    assert {name for name, rule in rules(alerts.OFF_BY_DEFAULT).items()} == {
        alert.name for alert in ALERTS if alert.off
    }


# --- Alertmanager -----------------------------------------------------------------------------------------------------


def test_amtool_takes_the_example() -> None:
    done = run([require("amtool"), "check-config", str(ROOT / "deploy" / "alertmanager.yml")])
    assert done.returncode == 0, done.stdout + done.stderr


def test_inhibitions_name_alerts_that_exist() -> None:
    text = (ROOT / "deploy" / "alertmanager.yml").read_text()
    assert set(re.findall(r"Smolagents\w+", text)) <= {alert.name for alert in ALERTS}
    for rule in yaml.safe_load(text)["inhibit_rules"]:
        assert rule["equal"] == list(alerts.SUBJECT)
