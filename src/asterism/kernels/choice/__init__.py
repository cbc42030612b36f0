"""Chooses the implementation of a call by prices, measured or shipped."""
