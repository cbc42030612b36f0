"""What a run is: its configuration, the registries of what it may name, and how processes divide it."""
