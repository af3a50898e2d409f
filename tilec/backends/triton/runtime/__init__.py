"""Compiling, launching and printing plans."""
