"""Measuring candidates on the device, and keeping the winners on disk."""
