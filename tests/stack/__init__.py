"""Tests with the real programs: collector, Prometheus, Jaeger, docker-compose. `make stack` builds them."""
