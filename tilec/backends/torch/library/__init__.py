"""Statements that a routine of torch computes: which ones (match), the table of routines (routines), their calls."""
