"""The promises. Each check builds a subject and reports what it measured. Differences are relative to the largest
logit.
"""

import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from asterism.bench.memory import extra_bytes
from asterism.models.cache.naming import CACHE, cache_of
from asterism.promises.subjects import SUBJECTS, VOCABULARY, TestedModel
from asterism.randomness import isolated

LENGTH, SHORT, PADDING = 176, 40, 24
"""Tokens of a sequence, so many that every peer stays sparse."""

MEMORY_LENGTHS = (2048, 8192)
MOST_GROWTH = 6.0
"""The factor by which memory may grow with four times the tokens. Linear growth is 4, quadratic growth 16."""

TOLERANCE = 1e-6


class PromiseOutcome(NamedTuple):
    """Whether a promise is kept, and the measurement in words. None means that it does not apply; `seen` then says
    why.
    """

    kept: bool | None
    seen: str


def padding_changes_no_real_token(subject: TestedModel) -> PromiseOutcome:
    """Compare a row alone with the same row padded in a longer batch, on the right and on the left.

    Encoders are judged with padding on the right, where their tokenizers pad. Causal models are judged with padding on
    the left, where generation pads. Other libraries' causal models get the positions that their generation would pass;
    ours derive them from the mask.
    """
    tokens = _tokens(LENGTH)
    alone = _logits(subject.build(), tokens)
    mask = torch.cat([torch.ones(1, LENGTH), torch.zeros(1, PADDING)], dim=1).long()
    padded = torch.cat([tokens, torch.zeros(1, PADDING, dtype=torch.int64)], dim=1)
    extra = {"attention_mask": mask} if subject.takes_padding else {}
    right = _difference(alone, _logits(subject.build(), padded, **extra)[:, :LENGTH])
    mask = mask.roll(PADDING, 1)
    extra = {"attention_mask": mask} if subject.takes_padding else {}
    if subject.is_causal and not subject.is_ours:
        extra["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
    left = _difference(alone, _logits(subject.build(), padded.roll(PADDING, 1), **extra)[:, PADDING:])
    kept = (left if subject.is_causal else right) < TOLERANCE
    return PromiseOutcome(kept, f"right {right:.1g}, left {left:.1g}")


def no_future_is_read(subject: TestedModel) -> PromiseOutcome:
    """Replace the last token: predictions at earlier tokens must not change."""
    if not subject.is_causal:
        return PromiseOutcome(None, "not causal")
    tokens = _tokens(LENGTH)
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % VOCABULARY
    difference = _difference(*(_logits(subject.build(), x)[:, :-1] for x in (tokens, other)))
    return PromiseOutcome(difference < TOLERANCE, f"{difference:.1g}")


def cached_equals_uncached(subject: TestedModel) -> PromiseOutcome:
    """Compare the last tokens, one at a time through the cache, with all tokens at once without it."""
    if not subject.is_causal:
        return PromiseOutcome(None, "not causal")
    tokens = _tokens(LENGTH)
    whole = _logits(subject.build(), tokens)
    model = subject.build()
    steps = [tokens[:, : LENGTH - 8], *tokens[:, LENGTH - 8 :].split(1, dim=1)]
    cache, parts = None, []
    with isolated(0), torch.no_grad():
        for step in steps:
            result = model(input_ids=step, use_cache=True, **{CACHE: cache})
            cache = cache_of(result)
            parts.append(result.logits)
    difference = _difference(whole, torch.cat(parts, dim=1))
    return PromiseOutcome(difference < TOLERANCE, f"{difference:.1g}")


def training_reads_what_evaluation_reads(subject: TestedModel) -> PromiseOutcome:
    """Compare training mode with evaluation mode, without dropout."""
    tokens = _tokens(LENGTH)
    difference = _difference(_logits(subject.build(), tokens), _logits(subject.build().train(), tokens))
    return PromiseOutcome(difference < TOLERANCE, f"{difference:.1g}")


def a_short_input_changes_nothing_after_it(subject: TestedModel) -> PromiseOutcome:
    """Compare a long input before a short one with the same input after it, in one model."""
    tokens = _tokens(LENGTH)
    model = subject.build()
    before = _logits(model, tokens)
    _logits(model, tokens[:, :SHORT])
    difference = _difference(before, _logits(model, tokens))
    return PromiseOutcome(difference < TOLERANCE, f"{difference:.1g}")


def no_global_generator_moves(subject: TestedModel) -> PromiseOutcome:
    """Compare the states of Python's, numpy's and torch's generators before and after the forward pass of a training
    step.
    """
    model = subject.build().train()
    with isolated(0):
        before = _generators()
        with torch.no_grad():
            model(input_ids=_tokens(LENGTH))
        moved = [name for name, state in _generators().items() if state != before[name]]
    return PromiseOutcome(not moved, f"moved: {', '.join(moved)}" if moved else "none moved")


def memory_grows_linearly(subject: TestedModel) -> PromiseOutcome:
    """Compare the peak memory of a forward pass in float32 at two lengths, each in a separate process."""
    if sys.platform != "linux":
        return PromiseOutcome(None, "peak memory is read from Linux's /proc")
    peaks = []
    for length in MEMORY_LENGTHS:
        command = [sys.executable, "-m", "asterism.promises.checks", subject.name, str(length)]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            return PromiseOutcome(None, f"failed at {length:,} tokens: {done.stderr.strip().splitlines()[-1]}")
        peaks.append(json.loads(done.stdout.splitlines()[-1]))
    growth = peaks[1] / peaks[0]
    return PromiseOutcome(growth < MOST_GROWTH, f"{growth:.1f} times, to {peaks[1] / 2**20:,.0f} MiB")


PROMISES: dict[str, Callable[[TestedModel], PromiseOutcome]] = {
    "padding changes no real token": padding_changes_no_real_token,
    "a causal model reads no future": no_future_is_read,
    "cached equals uncached": cached_equals_uncached,
    "training reads what evaluation reads": training_reads_what_evaluation_reads,
    "a short input changes nothing after it": a_short_input_changes_nothing_after_it,
    "no global generator moves": no_global_generator_moves,
    "memory grows linearly": memory_grows_linearly,
}


def _tokens(length: int) -> torch.Tensor:
    """int64 [1, length], none of them the padding token 0."""
    return torch.randint(1, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))


def _logits(model: nn.Module, tokens: torch.Tensor, **arguments: torch.Tensor) -> torch.Tensor:
    """The model's logits, always from the same state of the global generators, because some peers draw from them."""
    with isolated(0), torch.no_grad():
        np.random.seed(0)  # put back by isolated
        return model(input_ids=tokens, **arguments).logits


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


def _generators() -> dict[str, object]:
    return {
        "Python": random.getstate(),
        "numpy": np.random.get_state()[1].tobytes(),  # type: ignore[union-attr]
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def _measure(name: str, length: int) -> int:
    """Peak bytes during a forward pass, beyond those held before it."""
    model = next(subject for subject in SUBJECTS if subject.name == name).build(torch.float32)
    _logits(model, _tokens(LENGTH))
    gc.collect()
    return extra_bytes(lambda: _logits(model, _tokens(length)), "cpu")


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]))))
