"""Which universality theorems hold for a pattern at a length: conditions, witnesses, and a checker of its own."""

from typing import TYPE_CHECKING

from asterism.lazy import lazily

if TYPE_CHECKING:
    from asterism.theory.certificates.universality import Certificate, certify

__all__ = ["Certificate", "certify"]

__getattr__, __dir__ = lazily(__name__, {"Certificate": "universality", "certify": "universality"})
