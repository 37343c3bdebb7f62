"""Grafana's transformations: what happens to an answer between the data source and the picture."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, MatcherConfig

Step = DataTransformerConfig


def _step(id: str, options: Mapping[str, object], only: str | None = None) -> Step:
    """`only`: the query whose answer is meant; all of them otherwise."""
    matcher = MatcherConfig(id_val="byRefId", options=only) if only else None
    return Step(id_val=id, options=dict(options), filter_val=matcher)


def numbers(*fields: str) -> Step:
    """Make numbers of these fields. Labels are always strings, attributes in some versions of Grafana."""
    conversions = [{"targetField": field, "destinationType": "number"} for field in fields]
    return _step("convertFieldType", {"conversions": conversions, "fields": {}})


def sort(field: str, *, descending: bool = False, only: str | None = None) -> Step:
    """Order the rows."""
    return _step("sortBy", {"fields": {}, "sort": [{"field": field, "desc": descending}]}, only)


def merge() -> Step:
    """One table of the answers to several instant queries: rows with the same labels are one."""
    return _step("merge", {})


def join(field: str, mode: str = "outer") -> Step:
    """One table of several, by a field that all have."""
    return _step("joinByField", {"byField": field, "mode": mode})


def running_total(field: str, name: str) -> Step:
    """Add up a column from the top."""
    return _calculate("cumulativeFunctions", name, cumulative={"field": field, "reducer": "sum"})


def compute(left: str, operator: str, right: str, name: str, only: str | None = None) -> Step:
    """A column from two others, or from one and a number."""
    return _calculate("binary", name, only, binary={"left": left, "operator": operator, "right": right})


def row_number(name: str, only: str | None = None) -> Step:
    """Count the rows, from 0."""
    return _calculate("index", name, only)


def _calculate(mode: str, name: str, only: str | None = None, **how: object) -> Step:
    # `timeSeries` would first join all tables by their times.
    options = {"mode": mode, "alias": name, "replaceFields": False, "timeSeries": False, **how}
    return _step("calculateField", options, only)


def matrix(row: str, column: str, value: str, only: str | None = None) -> Step:
    """One row per `row`, one column per `column`.

    The first field is then called `row\\column`, and the table belongs to no query any more: `only` does not find it.
    """
    options = {"rowField": row, "columnField": column, "valueField": value, "emptyValue": "null"}
    return _step("groupingToMatrix", options, only)


def rename(regex: str, pattern: str) -> Step:
    """Rename the fields that match."""
    return _step("renameByRegex", {"regex": regex, "renamePattern": pattern})


def columns(
    named: Mapping[str, str], hidden: tuple[str, ...] = (), *, only: str | None = None, exactly: bool = False
) -> Step:
    """Rename the fields, in this order, and hide some; `exactly`: drop all that are not named."""
    options: dict[str, object] = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {field: i for i, field in enumerate(named)},
        "renameByName": {field: name for field, name in named.items() if name != field},
        "includeByName": dict.fromkeys(named, True) if exactly else {},
    }
    return _step("organize", options, only)
