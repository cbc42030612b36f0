"""What a model answers with: heads, their losses, and models that have them."""
