"""How totals, ratios, means and quantiles over a window are asked of Prometheus, for dashboards and rules alike.

**The rule**: a total is never plain `increase()`. It is `total()` below::

    sum by (…) (increase(x[R] anchored) + (last_over_time(x[5m] offset R) * 0 or min_over_time(x[R])))

In words, for every series that has a sample in the window R: what was added between its samples, counter resets seen to
and nothing extrapolated (`increase … anchored`), and, if the series was not there when the window began, what it was
born with (`min_over_time`: its first sample, or 0).

**Why**: a script that runs an agent exports once, at its end: its counters are born with their final value. And each
process has its own series. Measured with Prometheus 3.16 (tests/stack/test_totals.py; the table is in
docs/backends.md): plain `increase()` gave up to 1.5 times the truth; `increase(… anchored)` loses what a series was
born with where no zero was stored before it; "last value less value at the start" (`resets=False`) loses what was there
before a restart under the same instance id. The form above gave the truth wherever the data is there at all.
`min_over_time` and not the first sample: if a scrape meets the birth of a series, Prometheus stores the zero after the
first value, which then must not count twice.

**What it needs**: Prometheus 3.16 (`anchored` is behind a flag from 3.7 on), and a sample at least every 5 minutes from
a process that lives (the SDK exports every minute). A reset is seen if the new value is lower than the old one or a
zero was stored in between: Prometheus does that with `created-timestamp-zero-ingestion`, as in compose.yaml.
For a backend without `anchored` there is `total(…, resets=False)`. Where a counter stands lower than at the window's
beginning, it has begun again under the same labels; what it stands at is taken then: too little, but never below 0.

`x` is a counter, or `_bucket`, `_count` or `_sum` of a histogram. Windows may be Grafana's `$__range` and the like.
"""

from __future__ import annotations

LOOKBACK = "5m"
"""How far before the window the value at its beginning may lie: Prometheus' own lookback, which `anchored` uses too."""

_OPERATORS = ("=~", "!~", "!=", "=")


def selector(metric: str, **matchers: str) -> str:
    """`metric{label="value"}`. A value that begins with an operator keeps it: `agent="=~$agent"`, `instance="!="`."""
    found = ", ".join(_matcher(label, value) for label, value in matchers.items())
    return f"{metric}{{{found}}}" if found else metric


def _matcher(label: str, value: str) -> str:
    operator = next((each for each in _OPERATORS if value.startswith(each)), "")
    text = value.removeprefix(operator).replace("\\", "\\\\").replace('"', '\\"')
    return f'{label}{operator or "="}"{text}"'


def total(metric: str, window: str, by: tuple[str, ...] = (), *, resets: bool = True, **matchers: str) -> str:
    """What a counter has counted within the window, per group. Exact: no extrapolation, no fraction of a token."""
    x = selector(metric, **matchers)
    before = f"last_over_time({x}[{LOOKBACK}] offset {window})"
    if resets:
        return f"sum{_by(by)} (increase({x}[{window}] anchored) + ({before} * 0 or min_over_time({x}[{window}])))"
    last = f"last_over_time({x}[{window}])"
    return f"sum{_by(by)} ({last} - {before} >= 0 or {last})"


def ratio(
    numerator: str,
    denominator: str,
    window: str,
    by: tuple[str, ...] = (),
    *,
    at_least: float = 0,
    resets: bool = True,
    **matchers: str,
) -> str:
    """One total over another; nothing where the denominator is not above `at_least`."""
    over = total(numerator, window, by, resets=resets, **matchers)
    under = total(denominator, window, by, resets=resets, **matchers)
    return f"{over} / ({under} > {at_least:g})"


def mean(histogram: str, window: str, by: tuple[str, ...] = (), *, resets: bool = True, **matchers: str) -> str:
    """The mean of what a histogram recorded within the window: its sum over its count, exact."""
    return ratio(f"{histogram}_sum", f"{histogram}_count", window, by, at_least=0, resets=resets, **matchers)


def quantile(
    q: float, histogram: str, window: str, by: tuple[str, ...] = (), *, resets: bool = True, **matchers: str
) -> str:
    """A quantile of what a histogram recorded within the window: good to one bucket, so to a factor of 2 here."""
    return f"histogram_quantile({q:g}, {total(f'{histogram}_bucket', window, ('le', *by), resets=resets, **matchers)})"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
