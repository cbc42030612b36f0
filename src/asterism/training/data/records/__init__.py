"""Records, which models are fine-tuned on: rows of files in many formats, sequences with labels, what is held out."""
