"""The definition of a run: its configuration, the registries of names, and how processes divide the work."""
