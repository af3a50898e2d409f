"""Products of groups of rows, each by a matrix of its own that an index names (grouped GEMM, mixtures of experts)."""
