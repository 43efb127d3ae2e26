"""Measurements, run by hand: each prints the table that stands in docs/performance.md."""
