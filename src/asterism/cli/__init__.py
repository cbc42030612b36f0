"""The command line: one file per verb, and `main` that chooses among them. The outermost folder; nothing imports it."""
