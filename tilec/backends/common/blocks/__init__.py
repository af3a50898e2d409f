"""Block programs: kernels as a small typed IR, with a verifier, a printer and a builder."""
