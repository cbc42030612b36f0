"""Hugging Face checkpoints of BERT, BART, T5 and their kin, as Asterism models.

    from asterism.models import import_checkpoint
    import_checkpoint("bert-base-uncased", "long-bert", length=4096, pattern="bigbird(block=64)")

`checkpoint.py` leads through the import; `source.py` reads the folder; `architecture.py` says what an architecture is,
and each has a file with its table of names.
"""

from asterism.models.importing.checkpoint import ImportedCheckpoint, import_checkpoint

__all__ = ["ImportedCheckpoint", "import_checkpoint"]
