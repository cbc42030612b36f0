"""Tasks to fine-tune for: how files become examples, examples rows, and a model's outputs answers with scores.

`task.py` says how the three make a task. A new one is a file in `kinds/` and an entry in `settings/registry.py`.
"""
