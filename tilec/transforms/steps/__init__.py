"""Recurrences and scans as statements: short recurrences unrolled, the terms of running sums as tensors."""
