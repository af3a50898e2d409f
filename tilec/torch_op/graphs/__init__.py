"""What the passes over torch's graphs share and are made of."""
