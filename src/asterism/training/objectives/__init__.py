"""Objectives: what a model is trained on and judged by.

`run/objective.py` defines their interface. A new one is a file here and an entry in `settings/registry.py`.
"""
