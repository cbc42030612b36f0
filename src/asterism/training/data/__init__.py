"""What a run reads: corpora and their splits, records, windows, tokenizers, and documents packed into rows."""
