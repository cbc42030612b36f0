"""Recordings as sequences of samples in 8-bit mu-law, and back."""

from asterism.training.data.audio.audio import Audio

__all__ = ["Audio"]
