"""Heads of models, their losses, and models with heads."""
