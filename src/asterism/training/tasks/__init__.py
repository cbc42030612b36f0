"""Tasks of fine-tuning: files become examples, examples become rows, and a model's outputs become scored answers.

`task.py` joins the three to a task. A new task is a file in `kinds/` and an entry in `settings/registry.py`.
"""
