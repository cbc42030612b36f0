"""Objectives: what a model is trained on and judged by.

`run/objective.py` says what each has. A new one is a file of its own and an entry in `settings/registry.py`.
"""
