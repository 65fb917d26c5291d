"""The drafting methods that a replay compares, one module for each family."""
