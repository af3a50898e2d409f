"""Products written otherwise, so that they and their gradients are products of matrices."""
