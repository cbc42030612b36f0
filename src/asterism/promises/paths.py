"""The paths by which tokens reach a model: at once, padded, packed, through caches, and in pieces.

A path runs a model on rows that are all the same sequence, and says which tokens are real, and which document each
belongs to. It only calls the model: hooks measure what its layers read.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from asterism.models.cache.naming import CACHE, cache_of
from asterism.promises.reach import Undecided

PADDING = 3
"""Tokens of padding, where there is padding."""


@dataclass(frozen=True)
class PathCase:
    """A batch of equal rows [rows, tokens] for a model whose largest window or chunk has `largest` tokens.

    Where a path pads, the first `whole` rows are not padded, as in batches of rows that differ in length.
    """

    ids: torch.Tensor
    largest: int
    whole: int = 0

    @property
    def tokens(self) -> int:
        return self.ids.shape[1]

    @property
    def prompt(self) -> int:
        """Tokens before those that come one by one: with padding still more than the largest window."""
        return max(self.largest + 3 + PADDING, self.tokens - 24)


@dataclass(frozen=True)
class CallPath:
    """A way to call a model: its name, how it runs, which tokens are real and where documents begin.

    `needs_cache` paths are only for causal models.
    """

    name: str
    run: Callable[[Any, PathCase], None]
    needs_cache: bool = False
    padded: str = ""
    packed: bool = False

    @property
    def whole(self) -> int:
        """How many rows without padding precede those that are compared."""
        return 1 if self.padded else 0

    def real(self, tokens: int) -> np.ndarray:
        """bool [tokens]: which tokens are no padding."""
        return mask_of(tokens, self.padded).astype(bool)

    def documents(self, tokens: int) -> list[int]:
        """The lengths of the documents of a row without its padding."""
        if self.packed:
            return document_lengths(tokens)
        return [int(self.real(tokens).sum())]


def mask_of(tokens: int, side: str) -> np.ndarray:
    """int64 [tokens]: 1 for real tokens, 0 for padding on a side, if any."""
    mask = np.ones(tokens, np.int64)
    if side:
        mask[: PADDING if side == "left" else None][-PADDING:] = 0
    return mask


def document_lengths(tokens: int) -> list[int]:
    """Three documents: the second begins within a window of the first, and the last is the longest."""
    first, second = max(2, tokens // 4), max(2, tokens // 5)
    return [first, second, tokens - first - second]


def _positions(case: PathCase) -> torch.Tensor:
    restarting = torch.cat([torch.arange(length) for length in document_lengths(case.tokens)])
    return restarting.expand(len(case.ids), -1).to(case.ids.device)


def _prefill(model: Any, case: PathCase) -> None:
    model(case.ids, **without_cache(model))


def _training(model: Any, case: PathCase) -> None:
    with _in_training(model):
        _prefill(model, case)


@contextmanager
def _in_training(model: Any) -> Iterator[None]:
    """In training mode and with gradients, as a step of training computes its outputs."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _padded(side: str) -> Callable[[Any, PathCase], None]:
    def run(model: Any, case: PathCase) -> None:
        model(input_ids=case.ids, attention_mask=_mask(case, side, case.tokens), **without_cache(model))

    return run


def _packed(model: Any, case: PathCase) -> None:
    model(input_ids=case.ids, position_ids=_positions(case), **without_cache(model))


def _training_packed(model: Any, case: PathCase) -> None:
    with _in_training(model):
        _packed(model, case)


def _flattened(model: Any, case: PathCase) -> None:
    """What DataCollatorWithFlattening gives, which says both where documents end and where their tokens stand."""
    lengths = document_lengths(case.tokens)
    rows = torch.tensor(lengths * len(case.ids), device=case.ids.device)
    ends = torch.cat([rows.new_zeros(1), rows.cumsum(0)]).int()
    sizes = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": max(lengths), "max_length_k": max(lengths)}
    model(input_ids=case.ids, position_ids=_positions(case), **sizes, **without_cache(model))


def _own_cache(model: Any, case: PathCase) -> None:
    """The cache that the model makes by itself, which forgets what its windows do not read."""


def _full_cache(model: Any, case: PathCase) -> Any:
    """A cache that keeps all keys, so that only masks restrict."""
    from transformers import DynamicCache

    return DynamicCache()


def _static_cache(model: Any, case: PathCase) -> Any:
    from transformers import StaticCache

    return StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=case.tokens + 2)


def _cached(
    pieces: Callable[[PathCase], Iterable[int]], side: str = "", cache: Callable[[Any, PathCase], Any] = _own_cache
) -> Callable[[Any, PathCase], None]:
    def run(model: Any, case: PathCase) -> None:
        kept, start = cache(model, case), 0
        for length in pieces(case):
            end = min(start + length, case.tokens)
            if start == end:
                break
            padding = {"attention_mask": _mask(case, side, end)} if side else {}
            result = model(input_ids=case.ids[:, start:end], use_cache=True, **{CACHE: kept}, **padding)
            kept, start = cache_of(result), end
            if kept is None:
                raise Undecided(f"{type(model).__name__} returns no cache")

    return run


def _generated(**options: Any) -> Callable[[Any, PathCase], None]:
    def run(model: Any, case: PathCase) -> None:
        prompt = case.ids[:, : case.prompt]
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=case.tokens - case.prompt + 1,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            disable_compile=True,
            **options,
        )

    return run


def _mask(case: PathCase, side: str, end: int) -> torch.Tensor:
    mask = torch.from_numpy(mask_of(case.tokens, side))[:end].repeat(len(case.ids), 1)
    mask[: case.whole] = 1
    return mask.to(case.ids.device)


def without_cache(model: Any) -> dict[str, bool]:
    """The argument that spares a model its cache, if it has one."""
    return {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}


def _one_by_one(case: PathCase) -> Iterable[int]:
    return [case.prompt, *[1] * (case.tokens - case.prompt)]


def _short_pieces(case: PathCase) -> Iterable[int]:
    """Pieces that fit into a window, across its border and across chunks."""
    piece = max(2, 2 * case.largest // 3)
    return [piece] * (case.tokens // piece + 1)


def _long_pieces(case: PathCase) -> Iterable[int]:
    """A piece longer than the largest window, another, and the rest."""
    return [case.largest + 2, max(case.largest + 2, 2), 1, 2, case.tokens]


PATHS = (
    CallPath("prefill", _prefill),
    CallPath("training", _training),
    CallPath("padded right", _padded("right"), padded="right"),
    CallPath("padded left", _padded("left"), padded="left"),
    CallPath("packed by position_ids", _packed, packed=True),
    CallPath("packed by cu_seq_lens", _flattened, packed=True),
    CallPath("training packed by position_ids", _training_packed, packed=True),
    CallPath("cache", _cached(_one_by_one), needs_cache=True),
    CallPath("cache padded left", _cached(_one_by_one, "left"), needs_cache=True, padded="left"),
    CallPath("cache padded left in chunks", _cached(_short_pieces, "left"), needs_cache=True, padded="left"),
    CallPath("cache in short chunks", _cached(_short_pieces), needs_cache=True),
    CallPath("cache in long chunks", _cached(_long_pieces), needs_cache=True),
    CallPath("full cache", _cached(_one_by_one, cache=_full_cache), needs_cache=True),
    CallPath("full cache in chunks", _cached(_short_pieces, cache=_full_cache), needs_cache=True),
    CallPath("static cache", _cached(_one_by_one, cache=_static_cache), needs_cache=True),
    CallPath("static cache padded left", _cached(_one_by_one, "left", _static_cache), needs_cache=True, padded="left"),
    CallPath("static cache in chunks", _cached(_short_pieces, cache=_static_cache), needs_cache=True),
    CallPath("generate", _generated(), needs_cache=True),
    CallPath("generate with static cache", _generated(cache_implementation="static"), needs_cache=True),
    CallPath("generate with chunked prefill", _generated(prefill_chunk_size=4), needs_cache=True),
)
"""In the order of the table."""
