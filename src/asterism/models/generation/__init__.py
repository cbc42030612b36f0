"""How models continue a text."""
