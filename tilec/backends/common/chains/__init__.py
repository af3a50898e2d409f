"""Chains: products, what is between them and what they are reduced to, in one kernel."""
