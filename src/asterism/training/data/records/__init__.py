"""Records for fine-tuning: rows of files in many formats, sequences with labels, and held-out examples."""
