"""Block programs: kernels as a small typed IR, with a verifier, a printer, an interpreter and a builder."""
