"""One aggregation a statement, integer indices: flatten, reduce, defract and what belongs to them."""
