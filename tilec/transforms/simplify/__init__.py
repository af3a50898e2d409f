"""Passes that change no value and no meaning."""
