"""Builds the dashboards: `python -m grafana.build` writes their JSON.

`overview`, `run` and `operations` say what each screen holds, each with a Markdown file of its words; `panels`, `board`
and `transform` are how Grafana wants to be told; `ask` and `grafana.traceql` hold the queries. The JSON is committed,
and a test fails when it differs.
"""
