"""Generation of text by models."""
