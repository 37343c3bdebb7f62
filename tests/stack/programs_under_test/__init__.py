"""Users' programs, as the end-to-end tests run them under `opentelemetry-instrument`."""
