"""Measurements: `python -m tilec.bench cpu`."""
