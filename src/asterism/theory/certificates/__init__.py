"""Which universality theorems hold for a pattern at a length: conditions, witnesses, and a checker of its own."""
