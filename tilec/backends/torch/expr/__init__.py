"""Scalar expressions and reads of tensors as torch expressions, and the rule that fits any statement."""
