"""Tile in notebooks: cells that begin with `%%tile`."""
