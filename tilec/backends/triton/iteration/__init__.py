"""The points of a statement as blocks over its index variables."""
