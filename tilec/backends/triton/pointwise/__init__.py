"""Elementwise statements and reductions with any body."""
