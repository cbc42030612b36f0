"""Whether a model applies the windows and chunks of its configuration, refuses, or drops them without a word.

    asterism promises MistralForCausalLM

For every attention implementation and every path (`paths.py`), what each layer reads is measured (`reach.py`) and
compared with what the configuration says (`configured.py`). Nothing here depends on masks or kernels.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.patterns import Pattern
from asterism.promises.configured import Configured, configured, find_layers, given, hides_future
from asterism.promises.engines import engine
from asterism.promises.paths import PATHS, CallPath, PathCase
from asterism.promises.precision import in_float64, own_dtype
from asterism.promises.reach import Undecided, measure
from asterism.promises.verdicts import PathVerdict, State, first_line, groups_of, judge
from asterism.quiet import quiet_transformers

MOST_TOKENS = 2048
"""The longest row that is run without being requested."""

_EVERY_KEY = 96
"""Rows of up to so many tokens have every token perturbed; longer ones, some of them."""

_SOME_KEYS = 16


class WindowReport(NamedTuple):
    """All verdicts of a model, with what was checked."""

    model: str
    notes: tuple[str, ...]
    tokens: int
    verdicts: tuple[PathVerdict, ...]

    @property
    def dropped(self) -> tuple[PathVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.state == "dropped")

    def record(self) -> dict[str, Any]:
        """The report for JSON, with versions and the date."""
        packages = {name: version(name) for name in ("torch", "transformers")}
        return {
            **self._asdict(),
            "notes": list(self.notes),
            "verdicts": [verdict._asdict() for verdict in self.verdicts],
            "packages": packages,
            "date": datetime.now(UTC).date().isoformat(),
        }


class _Subject(NamedTuple):
    """A model under test, with its layers and what they should read."""

    model: nn.Module
    layers: Sequence[nn.Module]
    expected: Configured
    causal: bool


def check_windows(
    model: nn.Module,
    *,
    attention: Sequence[str] | None = None,
    paths: Sequence[str] | None = None,
    tokens: int | None = None,
    layers: Sequence[nn.Module] | None = None,
    patterns: Sequence[Pattern | str] | None = None,
    notes: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> WindowReport:
    """Compare who reads whom in each layer of a model with what its configuration says.

        report = check_windows(model, attention=["eager", "sdpa"])
        assert not report.dropped

    model      a model of transformers, or any module that maps token ids [rows, tokens] to outputs
    attention  attention implementations of transformers, one after another; by default the model's own
    paths      names of `PATHS`; by default all that fit the model
    tokens     the length of the rows; by default long enough for the largest window
    layers     the modules whose reach is measured, first to last; found in models of transformers
    patterns   what each layer should read, as patterns or their text; read from the configuration of such models
    notes      what the report should say of the model besides

    The model is put into evaluation mode, and its weights into float64 where it computes in that. Both are undone, and
    no generator moves. Raises ConfigurationError for a configuration that contradicts itself, for a model without known
    layers, and for a window longer than `MOST_TOKENS` unless `tokens` is given.
    """
    subject = _subject(model, layers, patterns)
    chosen = _chosen(paths, subject)
    length = _length(subject, tokens)
    verdicts: list[PathVerdict] = []
    with quiet_transformers(), warnings.catch_warnings(), _evaluating(model):
        warnings.simplefilter("ignore")  # made into errors, they would look like refusals
        for name in attention or [_own_attention(model)]:
            with engine(model, name) as refusal:
                for path in chosen:
                    say(f"{name}: {path.name}")
                    verdicts += _check(subject, name, path, length, refusal)
    return WindowReport(type(model).__name__, tuple(notes), length, tuple(verdicts))


def _subject(model: nn.Module, layers: Any, patterns: Any) -> _Subject:
    if (layers is None) != (patterns is None) and not isinstance(model, PreTrainedModel):
        raise ConfigurationError("layers-with-patterns", "layers= and patterns= of check_windows are given together")
    if isinstance(model, PreTrainedModel):
        if model.main_input_name != "input_ids":
            raise ConfigurationError(
                "no-tokens", f"{type(model).__name__} reads {model.main_input_name}; windows are checked by tokens"
            )
        found = find_layers(model) if layers is None else list(layers)
        expected = configured(model, found) if patterns is None else given(patterns, found)
        return _Subject(model, found, expected, hides_future(model, found))
    if layers is None:
        raise ConfigurationError(
            "not-a-model",
            f"{type(model).__name__} is not a model of transformers; give check_windows its layers= and patterns=",
        )
    return _Subject(model, list(layers), given(patterns, layers), False)


def _chosen(names: Sequence[str] | None, subject: _Subject) -> list[CallPath]:
    known = {path.name: path for path in PATHS}
    if names is None:
        return list(PATHS) if isinstance(subject.model, PreTrainedModel) else [known["prefill"], known["training"]]
    if unknown := [name for name in names if name not in known]:
        raise ConfigurationError("unknown-path", f"no path is named {unknown[0]!r}; the paths are: {', '.join(known)}")
    return [known[name] for name in names]


def _length(subject: _Subject, tokens: int | None) -> int:
    size = subject.expected.largest
    needed = max(24, 2 * size + 10) if size <= 64 else size + 64
    if tokens is not None:
        if tokens < size + 8:
            raise ConfigurationError(
                "tokens-below-window",
                f"a window or chunk of {size:,} tokens shows only in rows of at least {size + 8:,}, got {tokens:,}",
            )
        return tokens
    if needed > MOST_TOKENS:
        rows = 1 + _SOME_KEYS
        raise ConfigurationError(
            "window-too-long",
            f"a window of {size:,} tokens needs rows of more than {size:,} tokens; give tokens={needed:,} to run them"
            f" ({rows} rows a call, {rows * needed**2 / 2**30:,.1f} billion pairs a layer), or check a small model with"
            f" the same rule: asterism promises {type(subject.model).__name__}",
        )
    return needed


def _own_attention(model: nn.Module) -> str:
    return getattr(getattr(model, "config", None), "_attn_implementation", None) or "its own"


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; the mode of every module is put back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check(subject: _Subject, attention: str, path: CallPath, tokens: int, refusal: str | None) -> list[PathVerdict]:
    """The verdicts of a path, one for each pattern of the model's layers."""
    groups = groups_of(subject.expected.patterns)

    def everywhere(state: State, seen: str) -> list[PathVerdict]:
        return [PathVerdict(attention, path.name, where, text, state, seen) for text, where in groups.items()]

    if refusal is not None:
        return everywhere("refused", refusal)
    if path.needs_cache and not _caches(subject, path):
        return everywhere("none", "the model has no cache" if subject.causal else "the model is not causal")
    try:
        return _judged(subject, attention, path, tokens)
    except Undecided as error:
        return everywhere("undecided", str(error))
    except Exception as error:
        return everywhere("refused", first_line(error))


def _judged(subject: _Subject, attention: str, path: CallPath, tokens: int) -> list[PathVerdict]:
    """The verdicts in float64, or in the model's own dtype where it does not compute in that, or not finite numbers."""
    if own_dtype(subject.model) is not torch.float64:
        try:
            with in_float64(subject.model):
                verdicts = _measured(subject, attention, path, tokens)
            # Where a pair is named, its movement is too small for a dtype of less precision.
            if all(verdict.state != "undecided" or verdict.witness for verdict in verdicts):
                return verdicts
        except Exception:  # whatever it is, the model's own dtype repeats it
            pass
    return _measured(subject, attention, path, tokens)


def _measured(subject: _Subject, attention: str, path: CallPath, tokens: int) -> list[PathVerdict]:
    keys = _keys(tokens)
    row = _row(subject.model, tokens)

    def run(rows: int) -> None:
        path.run(subject.model, PathCase(row.expand(rows, -1), subject.expected.largest, path.whole))

    patterns, reaches = subject.expected.patterns, [measure(subject.layers, tokens, keys, run, 0, path.whole)]
    verdicts = judge(attention, path, patterns, reaches, keys)
    if any(verdict.witness for verdict in verdicts):
        # A key may be read and hardly move its query, and what is dropped is worth a second look.
        reaches.append(measure(subject.layers, tokens, keys, run, 1, path.whole))
        verdicts = judge(attention, path, patterns, reaches, keys)
    return verdicts


def _caches(subject: _Subject, path: CallPath) -> bool:
    model: Any = subject.model
    generates = not path.name.startswith("generate") or (hasattr(model, "can_generate") and model.can_generate())
    return subject.causal and generates and hasattr(getattr(model, "config", None), "use_cache")


def _keys(tokens: int) -> list[int]:
    """The tokens that are perturbed: all of a short row; of a long one the first ones, the last, and some between."""
    if tokens <= _EVERY_KEY:
        return list(range(tokens))
    between = np.linspace(0, tokens - 1, _SOME_KEYS - 8).astype(int)
    return sorted({0, 1, 2, 3, 4, 62, *between.tolist(), tokens - 2, tokens - 1})


def _row(model: nn.Module, tokens: int) -> torch.Tensor:
    """int64 [1, tokens]: a sequence without special tokens, which have the lowest and highest ids."""
    embeddings = next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)
    size = getattr(embeddings, "num_embeddings", 32)
    first = min(8, size // 4)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(first, max(size - first, first + 1), (1, tokens), generator=generator).to(device)
