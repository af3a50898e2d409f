"""Statements whose output index depends on data."""
