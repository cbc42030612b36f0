"""The tasks, one file each. `writing.py` is the common part of the tasks whose answers are generated."""
