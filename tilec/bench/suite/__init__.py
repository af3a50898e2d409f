"""The workload suite: what everyday models compute, as Tile and as torch users write it, measured side by side."""
