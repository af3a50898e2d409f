"""The text of kernels: scopes, scalar expressions, accumulators, epilogues, device functions."""
