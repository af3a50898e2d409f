"""What calls of a function run, for given shapes or for a class of them, and what they are warned of."""
