"""Recurrences as kernels: lanes in parallel or coupled, time in a loop."""
