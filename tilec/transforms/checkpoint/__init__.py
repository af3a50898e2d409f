"""Gradient checkpointing: recurrences computed again chunk by chunk."""
