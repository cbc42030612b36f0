"""Variable tracking: names that are assigned to one another, from a first one with a value, scattered over noise.

Hsieh 2024 (RULER, arXiv 2404.06654), section 3, "Multi-hop tracing": one chain of four hops.
"""

from itertools import islice

import numpy as np

from asterism.evaluation.sample import Sample
from asterism.evaluation.words import noise, numbers, variables

HOPS = 4
_DIGITS = 5


def tracked(random: np.random.Generator, words: int) -> Sample:
    """A sample with so many words of noise: the answers are all names that have the value in the end."""
    chain = list(islice(variables(random), HOPS + 1))
    value = next(numbers(random, _DIGITS))
    text = noise(words)
    places = (np.sort(random.random(len(chain))) * (len(text) + 1)).astype(int).tolist()
    given = [value, *(f"VAR {name}" for name in chain)]
    for place, name, source in reversed(list(zip(places, chain, given, strict=False))):
        text.insert(place, f"VAR {name} = {source}.")
    return Sample(
        f"Follow the assignments of variables that are hidden in the text below.\n{' '.join(text)}\n"
        f"According to the text, the {len(chain)} variables that have the value {value} are:",
        tuple(chain),
        tuple(chain),
    )
