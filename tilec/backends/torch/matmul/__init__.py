"""Sums of products as matrix products and convolutions."""
