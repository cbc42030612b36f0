"""Theorems that run: each construction of the papers as code that a reader can execute and a test can refute.

    from asterism.theory import certify
    print(certify("star() | window(1, 1)", 64).explain())

Three folders: `certificates` decides which theorems hold for a pattern, `approximation` builds the transformers whose
existence they prove, and `machines` runs Turing machines as transformers.
"""

from typing import TYPE_CHECKING

from asterism.lazy import lazily

if TYPE_CHECKING:
    from asterism.theory.approximation import Approximation, ContextualMapping, approximate, star_mapping, yun_mapping
    from asterism.theory.certificates import Certificate, certify
    from asterism.theory.machines import TuringMachine, simulate

__all__ = [
    "Approximation",
    "Certificate",
    "ContextualMapping",
    "TuringMachine",
    "approximate",
    "certify",
    "simulate",
    "star_mapping",
    "yun_mapping",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Approximation": "approximation",
        "Certificate": "certificates",
        "ContextualMapping": "approximation",
        "TuringMachine": "machines",
        "approximate": "approximation",
        "certify": "certificates",
        "simulate": "machines",
        "star_mapping": "approximation",
        "yun_mapping": "approximation",
    },
)
