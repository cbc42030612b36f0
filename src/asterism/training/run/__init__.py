"""The execution of a run: its setup, its folder, the training loop, and the session that watches it."""
