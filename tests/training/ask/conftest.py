"""Fixtures of several files: finished runs of tasks."""

from asked_runs import runs  # noqa: F401
