"""Recurrences step by step, in torch or NumPy."""
