"""Groups of statements that share rows, in one kernel."""
