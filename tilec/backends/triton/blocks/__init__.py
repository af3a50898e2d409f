"""Block programs as Triton."""
