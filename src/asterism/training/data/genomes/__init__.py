"""Genomes: sequences with random access, annotation along them, and the modality that trains on them."""

from asterism.training.data.genomes.genome import Genome

__all__ = ["Genome"]
