"""The plan: allocations, launches and calls of torch in order, as frozen data."""
