"""What torch sees of a Tile function: a node of its autograd graph, an operator where torch only looks at a call."""
