"""Pictures of the dashboards for those who have no Grafana at hand: `python -m grafana.preview` draws them.

Drawn from the answers to the panels' own queries, after the panels' own transformations. About metrics a real
Prometheus answers, fed by real agents; about traces the tests' own code does, from these agents' spans, as Tempo would.
Grafana has no part in the drawing. Each picture says so.
"""
