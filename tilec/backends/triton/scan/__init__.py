"""Scans: aggregations over all terms up to an element, and recurrences whose step is affine."""
