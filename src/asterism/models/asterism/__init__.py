"""The library's own model: its configuration and its stacks."""
