"""The gradient of a program, as a program."""
