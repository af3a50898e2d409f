"""Sums of products on tensor cores, products of exponentials included."""
