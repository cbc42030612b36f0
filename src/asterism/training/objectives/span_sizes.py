"""How much of a text span corruption leaves out (Raffel 2020, section 3.3.4): counts alone, without torch."""

from bisect import bisect_right
from dataclasses import dataclass

NOISE_SHARE = 0.15
MEAN_SPAN = 3.0


@dataclass(frozen=True)
class SpanSizes:
    """The number of `tokens` of a text, the number left out (`noise`), and the number of `spans`."""

    tokens: int
    noise: int
    spans: int

    @classmethod
    def of(cls, tokens: int) -> "SpanSizes":
        """Those for a text of so many tokens, 2 at least: a token stays between two spans, and one is left out."""
        noise = min(max(1, round(NOISE_SHARE * tokens)), tokens - 1)
        spans = min(max(1, round(noise / MEAN_SPAN)), tokens - noise + 1)
        return cls(tokens, noise, spans)

    @classmethod
    def fitting(cls, room: int) -> "SpanSizes":
        """Those of the longest text whose input has at most `room` tokens, 2 at least, sentinels included.

        An input never gets shorter as its text gets longer, nor is it shorter than half of it.
        """
        tokens = range(2, 2 * room + 4)
        too_long = bisect_right(tokens, room, lo=1, key=lambda count: cls.of(count).input_tokens)
        return cls.of(tokens[too_long - 1])

    @property
    def input_tokens(self) -> int:
        """The number of tokens of the input, sentinels included."""
        return self.tokens - self.noise + self.spans

    @property
    def target_tokens(self) -> int:
        """The number of tokens of the target, sentinels included."""
        return self.noise + self.spans + 1
