"""Data of experiments: tasks made by generators, and files of the user, written as a run reads them."""
