"""How documents of any length are read: whole, cut, through windows, in selected windows, or twice.

Readers are the alternative to a long sparse attention: many short readings of one document. `text.py` has the
vocabulary, and `reader.py` defines a reader. A reader counts tokens and does not depend on a model. Only a learned
scorer needs torch.
"""
