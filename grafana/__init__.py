"""Grafana: dashboards, alert rules and what is needed to bring them in. Built by `python -m grafana.build`."""
