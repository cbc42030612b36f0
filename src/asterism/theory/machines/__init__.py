"""Turing machines, run by transformers with full and with sparse attention in exact arithmetic."""
