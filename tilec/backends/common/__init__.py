"""What every backend shares: domains of points, terms and factors, skewed loops, axis tiling, checkpointed runs."""
