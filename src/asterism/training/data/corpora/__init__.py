"""Corpora, which models are pretrained on: files, splits, pieces, windows, tokens and packed rows."""
