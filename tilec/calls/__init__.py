"""Calls of a function like known ones, from what they are given straight to what runs."""
