"""A program for known shapes and element types."""
