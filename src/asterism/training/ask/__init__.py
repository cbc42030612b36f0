"""What is asked of a run: predictions, samples, and, before it begins, an estimate."""
