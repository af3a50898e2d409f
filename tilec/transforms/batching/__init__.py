"""A program over a batch of its inputs, as a program."""
