"""Places that are clamped: reads and sums at them, part by part, axis by axis."""
