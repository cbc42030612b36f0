"""How documents of any length are read: whole, cut, through windows, in selected windows, or twice.

The other road to long documents: many readings of a short attention in the place of one long one. `text.py` has the
vocabulary, `reader.py` what a reader is. A reader counts tokens, it does not know a model, and only a
scorer that learned needs torch.
"""
