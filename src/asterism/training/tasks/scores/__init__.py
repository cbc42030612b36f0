"""How good answers are: plain functions of answers and of what is right, and scores that need no model."""
