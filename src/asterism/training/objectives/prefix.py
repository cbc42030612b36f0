"""Predict what follows a prefix (Liu 2018; Raffel 2020, section 3.2.2). The prefix is read but not predicted.

The model is causal, so it reads the prefix from the left only. T5's prefix LM reads it in both directions. The metrics
are those of the objective "causal", over all bytes.
"""

import torch

from asterism.labels import IGNORED
from asterism.randomness import of_row
from asterism.training.data.corpora.windows import WindowCorpus
from asterism.training.objectives.causal import CausalTokens


class PrefixTokens(CausalTokens):
    """Every position of a random window after its prefix predicts the next byte or token."""

    def batch(self, corpus: WindowCorpus, step: int) -> dict[str, torch.Tensor]:
        """Random windows as those of `CausalTokens`; shift_labels are IGNORED within the prefix of each.

        A window of context + 1 tokens has a prefix of 1 to context of them, uniformly.
        """
        batch = super().batch(corpus, step)
        for row, labels in enumerate(batch["shift_labels"]):
            prefix = of_row(self.config.seed, step, row).integers(1, self.config.context, endpoint=True)
            labels[: prefix - 1] = IGNORED  # column i predicts byte i + 1
        return self._labelled(batch)
