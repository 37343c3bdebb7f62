"""Runs smolagents' own test suite bare and instrumented, and compares; see README.md."""
