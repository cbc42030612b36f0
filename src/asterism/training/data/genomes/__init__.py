"""Genomes: sequences with random access, annotation and signal along them, and the modality that trains on them."""
