"""The initialisation of Child 2019, section 5.3.

Every weight matrix is drawn from N(0, gain / sqrt(d_in)) and every bias is 0. N blocks have 2N residual branches; the
last matrix of each is smaller by 1 / sqrt(2N), so that the sum of all branches keeps the size of one. A token embedding
of width d has standard deviation gain / sqrt(d); a position that is the sum of m embeddings has gain / sqrt(d m) in
each of them.

The paper prints "N(0, 0.125 / sqrt(d_in))" and we read the second argument as a standard deviation, so the gain is
0.125. The authors' later code (openai/distribution_augmentation) draws with standard deviation sqrt(0.125 / d_in)
instead, which is a gain of sqrt(0.125) = 0.354.

Encoders in the manner of BERT draw every matrix from N(0, s) instead, with one s such as 0.02.
"""

import math

from torch import nn

from asterism.layers.linear import Linear
from asterism.layers.linear_mixing import LinearMixing
from asterism.layers.positions import FactorisedPositions


class ResidualLinear(Linear):
    """The last matrix of a residual branch (W_p of attention, W_2 of the feed-forward layer).

    It is a linear layer like any other; its type tells `initialise` to make it smaller.
    """


def initialise(module: nn.Module, *, gain: float, branches: int, spread: float | None = None) -> None:
    """Draw the parameters that `module` itself owns, not those of its children; use with `nn.Module.apply`.

    `gain` is the standard deviation times sqrt(d_in), 0.125 in the paper; `branches` is the number of residual
    branches of the stack: two for each block, three where there is cross attention. With `spread`, that is the
    standard deviation of every matrix, and gain and branches do not count.
    """
    if isinstance(module, nn.Linear):
        scale = 1 / math.sqrt(branches) if isinstance(module, ResidualLinear) else 1.0
        nn.init.normal_(module.weight, std=spread or scale * gain / math.sqrt(module.in_features))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=spread or gain / math.sqrt(module.embedding_dim))
    elif isinstance(module, FactorisedPositions | LinearMixing):
        module.initialise(gain, spread)
    elif callable(reset := getattr(module, "reset_parameters", None)):  # norms, and layers that draw as their papers do
        reset()
