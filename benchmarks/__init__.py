"""Benchmarks, with one script per claim about speed or models. They are not installed."""
