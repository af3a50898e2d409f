"""Functions that are made of others: tangents and batches."""
