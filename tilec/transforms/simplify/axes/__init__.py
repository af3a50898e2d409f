"""Axes taken apart and joined: reshapes, quotients and remainders, long lags."""
