"""Theorems that run: what a pattern can and cannot express, with witnesses that can be checked."""

from asterism.theory.contextual import ContextualMapping, star_mapping, yun_mapping
from asterism.theory.universality import Certificate, certify

__all__ = ["Certificate", "ContextualMapping", "certify", "star_mapping", "yun_mapping"]
