"""A language server for Tile: what editors show of a text, without an editor of its own."""
