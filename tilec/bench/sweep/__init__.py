"""Figures over sizes: log products, recurrences, layers; measured, kept in a file, drawn."""
