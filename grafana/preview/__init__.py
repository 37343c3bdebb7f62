"""Pictures of the dashboards for those who have no Grafana at hand: `python -m grafana.preview` draws them.

Drawn from what a real Prometheus, fed by real agents, answers to the panels' own queries, after the panels' own
transformations. Grafana has no part in the drawing, and each picture says so.
"""
