"""Questions to a run: predictions, samples, and an estimate before it begins."""
