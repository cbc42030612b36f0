"""The input of a run: corpora and their splits, records, windows, tokenizers, and documents packed into rows."""
