"""Block programs of chains: the kernel, and the lists of blocks that it visits."""
