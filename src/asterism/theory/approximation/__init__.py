"""What sparse transformers can approximate, as constructions that run, and what sparsity costs."""
