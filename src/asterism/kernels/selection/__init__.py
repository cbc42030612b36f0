"""Attention to blocks that are chosen by content: choosing them, and attending to them."""
