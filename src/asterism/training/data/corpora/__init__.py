"""What every kind of data shares, from files to what a step reads.

In the order of reading: `splits.py` (a corpus is three splits of pieces of 8-bit values), `windows.py` (which values a
step reads and predicts), `corpus.py` (what a run asks), `modality.py` (how files become values), `bytes.py` (the first
modality; `folders.py` and `stored.py` find its files). For tokens: `tokenization.py`, then `packing.py`.
"""
