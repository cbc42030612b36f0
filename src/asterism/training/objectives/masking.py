"""The masking of BERT (Devlin 2019, section 3.1): which tokens are predicted, and what the model reads in their place.

The same share of tokens is chosen in every row, uniformly and without replacement. A chosen token is replaced by the
mask in 80 of 100 cases, by a random token in 10, and kept in 10. Special tokens are never chosen, and never replace a
token.
"""

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from asterism.labels import IGNORED

MASK_SHARE = 0.15
REPLACED_BY_MASK, REPLACED_BY_TOKEN = 0.8, 0.1


@dataclass(frozen=True, eq=False)
class Masking:
    """The masking of one vocabulary.

    `ordinary` are the tokens that may be chosen and that replace others, `special` the rest, both int64 [tokens];
    `mask` is the mask's id.
    """

    ordinary: np.ndarray
    special: np.ndarray
    mask: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Masking":
        """All tokens of a tokenizer but its special ones."""
        special = np.array(sorted(tokenizer.all_special_ids))
        return cls(np.setdiff1d(np.arange(len(tokenizer)), special), special, tokenizer.mask_token_id)

    def apply(
        self, tokens: np.ndarray, count: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Choose `count` indices of one row and mask them.

        tokens     int64 [N], not changed
        returns    inputs int64 [N]; places int64 [count], ascending; labels int64 [count], the tokens that stood there.
                   A row with too few ordinary tokens has all of them chosen, and its other labels are IGNORED.
        """
        candidates = np.flatnonzero(np.isin(tokens, self.special, invert=True))
        chosen = np.sort(random.permutation(candidates)[:count])
        fate = random.random(len(chosen))
        other = random.choice(self.ordinary, len(chosen))
        inputs = tokens.copy()
        inputs[chosen] = np.where(fate < REPLACED_BY_MASK + REPLACED_BY_TOKEN, other, inputs[chosen])
        inputs[chosen] = np.where(fate < REPLACED_BY_MASK, self.mask, inputs[chosen])
        places, labels = np.zeros(count, dtype=np.int64), np.full(count, IGNORED, dtype=np.int64)
        places[: len(chosen)], labels[: len(chosen)] = chosen, tokens[chosen]
        return inputs, places, labels
