"""From a lowered program to a plan: a family for each statement, axis tiling, what is materialized."""
