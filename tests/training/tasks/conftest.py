"""Fixtures of several files: runs of tasks whose answers are texts."""

from written_runs import finished, models, settings  # noqa: F401
