"""What several passes need: fresh names, extents, kinds of values, roles of indices, broadcasting, factors."""
