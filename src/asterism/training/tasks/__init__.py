"""Tasks to fine-tune for: reading their files, making features of them, and scoring predictions.

`task.py` says what a task has. A new one is a file of its own and an entry in `settings/registry.py`.
"""
