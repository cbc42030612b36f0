"""The common part of all kinds of data, from files to the input of a step.

Read the files in this order: `splits.py` (a corpus is three splits of pieces of 8-bit values), `windows.py` (the values
that a step reads and predicts), `corpus.py` (the interface for a run), `modality.py` (how files become values),
`bytes.py` (the first modality; `folders.py` and `stored.py` find its files). For tokens: `tokenization.py`, then
`packing.py`.
"""
