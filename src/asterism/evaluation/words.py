"""Words and sentences that prompts are made of. Nothing is downloaded: all of it stands here, or is drawn by a seed.

noise         the same five short sentences, over and over
prose         sentences of everyday words, drawn by a seed
names         pairs of everyday words
codes         words of no language, six letters each
numbers, hexadecimals, variables
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

Drawn = TypeVar("Drawn")

_ADJECTIVES = """
able amber ample angry bald basic blank bleak blond blunt bold brave brief bright brisk broad broken calm candid
cheap chilly clean clear clever cold common cool crisp cruel curly damp dark dear decent deep dense dim double dry
dull dusty eager early easy elder empty equal exact faint fair famous fancy fast fatal fierce final fine firm flat
fluffy foggy fond frail free fresh frozen full funny gentle giant glad golden good grand grave great green grey
happy hard harsh hasty heavy hidden hollow honest huge humble hungry icy idle ideal inner jolly keen kind large late
lazy lean legal light little lively local lonely long loose loud loyal lucky mellow merry mild
"""
_NOUNS = """
acorn anchor apple arrow autumn badge barrel basket beach bench bird board bottle bowl branch bread bridge brush
bucket butter cabin camera candle canyon carpet castle cellar chain chair chapel cheese cherry circle city cliff
cloud clover coast coin copper corner cotton cradle crown curtain desert dinner doctor door dragon drum eagle engine
fabric farmer feather fence field finger flag flower flute forest fork fountain garden gate ginger glass glove goose
grape hammer harbor harvest helmet hill honey horse house island jacket jewel kettle key kitchen ladder lake lamp
lantern lemon letter library lion lizard market meadow melon mirror monkey mountain needle ocean olive orange
orchard paper pearl pencil pepper piano pillow planet pocket pond ribbon river rocket
"""
_VERBS = """
admired borrowed carried cleaned counted covered crossed drew followed forgot found guarded hid kept lifted liked
lost measured moved noticed opened painted passed praised reached repaired saw sold sought watched
"""
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
ADJECTIVES, NOUNS, VERBS = (tuple(words.split()) for words in (_ADJECTIVES, _NOUNS, _VERBS))
NOISE = tuple(_NOISE.split())
"""As Hsieh 2024 (RULER) has it, after Mohtashami and Jaggi 2023."""

_OF_A_SENTENCE = 7
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def noise(words: int) -> list[str]:
    """So many words of noise, as sentences of which the last may be cut."""
    return _sentences([NOISE[number % len(NOISE)] for number in range(words)])


def prose(random: np.random.Generator, words: int) -> list[str]:
    """So many words of prose, as sentences; what is too little for another one is noise.

    Equal generators give texts of which the shorter begins the longer, up to its noise.
    """
    count, rest = divmod(words, _OF_A_SENTENCE)
    lists = (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS)
    drawn = (random.random((count, len(lists))) * [len(one) for one in lists]).astype(int)
    made = []
    for row in drawn.tolist():
        first, subject, verb, second, thing = (words[at] for words, at in zip(lists, row, strict=True))
        made.append(f"The {first} {subject} {verb} the {second} {thing}.")
    return made + noise(rest)


def names(random: np.random.Generator) -> Iterator[str]:
    """Pairs such as brave-castle, all different: 13,452, more than a prompt of 2^17 tokens can hold in sentences."""
    for number in random.permutation(len(ADJECTIVES) * len(NOUNS)).tolist():
        yield f"{ADJECTIVES[number // len(NOUNS)]}-{NOUNS[number % len(NOUNS)]}"


def numbers(random: np.random.Generator, digits: int) -> Iterator[str]:
    """Numbers of so many digits, all different."""
    return _distinct(lambda: str(random.integers(10 ** (digits - 1), 10**digits)))


def hexadecimals(random: np.random.Generator) -> Iterator[str]:
    """Identifiers in the form of a UUID, all different."""

    def draw() -> str:
        text = random.bytes(16).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    return _distinct(draw)


def codes(random: np.random.Generator) -> Iterator[str]:
    """Words of three syllables and six letters, all different; so none is a part of another."""

    def draw() -> str:
        letters = random.random(6).tolist()
        kinds = (_CONSONANTS, _VOWELS) * 3
        return "".join(kind[int(share * len(kind))] for kind, share in zip(kinds, letters, strict=True))

    return _distinct(draw)


def variables(random: np.random.Generator) -> Iterator[str]:
    """Names of five capital consonants, all different; so none is a part of any word of a text."""
    capitals = _CONSONANTS.upper() + "CHJQWX"
    return _distinct(lambda: "".join(capitals[int(share * len(capitals))] for share in random.random(5).tolist()))


def _distinct(draw: Callable[[], Drawn]) -> Iterator[Drawn]:
    seen: set[Drawn] = set()
    while True:
        if (one := draw()) not in seen:
            seen.add(one)
            yield one


def _sentences(words: list[str]) -> list[str]:
    """The words as sentences, each of which ends where a word ends in a full stop."""
    made: list[str] = []
    first = 0
    for number, word in enumerate(words, start=1):
        if word.endswith(".") or number == len(words):
            made.append(" ".join(words[first:number]))
            first = number
    return made
