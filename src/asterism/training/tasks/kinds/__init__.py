"""The tasks that there are, a file each. `writing.py` holds what those have in common whose answers are generated."""
