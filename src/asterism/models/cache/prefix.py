"""Tokens that were read once: kept in memory or in a file, and continued as often as one likes.

A prefix is a cache together with the tokens that it has seen, so that both can be checked: a file against the model
that goes on with it, new tokens against those that were read. What a pattern has forgotten takes no room in the file.
"""

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache

from asterism.errors import AsterismError, CheckpointError, ConfigurationError, shown
from asterism.files import read_notes, read_tensors, replacing_file
from asterism.layers.kept import Seen
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.layer import PatternCacheLayer
from asterism.models.cache.naming import with_cache
from asterism.models.drop_in.places import find_attention
from asterism.patterns import parse

CHUNK = 4096
"""So many tokens are read at a time: activations of more take memory and save no time."""

_NOTES = "asterism_prefix"
_STATES = ("keys", "values")
_VERSION = 1
_SAMPLED = 1024
"""Values of each tensor that tell one model from another: training, and adapters too, change all of them."""
_NO_MATTER = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache")
_OTHER = {
    "class": "another class",
    "pattern": "another pattern",
    "configuration": "another configuration",
    "weights": "other weights or of another dtype",
}


@dataclass(frozen=True, eq=False)
class Prefix:
    """Tokens that a causal model has read, and the cache that has seen them.

        prefix = Prefix.read(model, document_ids)
        prefix.save("document.safetensors")
        prefix = Prefix.load("document.safetensors", model)
        ids = torch.cat([document_ids, question_ids], dim=1)
        model.generate(ids, past_key_values=prefix.cache_for(ids))

    model      one of `asterism.models`, or one of transformers after `use_pattern`
    cache      a PatternCache, or what `generate` returned as `past_key_values` of such a model
    input_ids  int64 [B, N], padding included: at least the columns that the cache has seen; what follows is dropped,
               such as the last token that `generate` returns, which the model has not read

    Raises ConfigurationError for a cache that keeps its tokens otherwise, and for fewer tokens than it has seen.
    """

    model: PreTrainedModel
    cache: Cache
    input_ids: Tensor

    def __post_init__(self) -> None:
        for number, layer in enumerate(self.cache.layers):
            if not isinstance(layer, PatternCacheLayer):
                raise ConfigurationError(
                    "prefix-without-pattern",
                    f"layer {number} keeps its tokens in a {type(layer).__name__}, which follows no pattern; give the"
                    " model its pattern with use_pattern(model, ...) first",
                )
        ids, seen = self.input_ids, self.cache.get_seq_length()
        if not seen or ids.ndim != 2 or ids.is_floating_point() or ids.shape[1] < seen or len(ids) != self._rows:
            raise ConfigurationError(
                "prefix-tokens",
                f"a prefix needs the {seen} tokens of {self._rows} rows that its cache has seen, got input_ids"
                f" {list(ids.shape)} of {ids.dtype}",
            )
        object.__setattr__(self, "input_ids", ids[:, :seen].detach().to("cpu", torch.int64, copy=True))

    @classmethod
    def read(
        cls,
        model: PreTrainedModel,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        chunk: int = CHUNK,
        **options: Any,
    ) -> Self:
        """Have the model read integers [B, N], with the mask [B, N] that `generate` takes, `chunk` tokens at a time.

        `options` are those of PatternCache. Raises what the model raises.
        """
        cache = PatternCache(model.config if isinstance(model.config, AsterismConfig) else None, **options)
        own = model.generation_config
        padding = None if own is None else own.pad_token_id
        how = GenerationConfig(
            max_new_tokens=1,
            do_sample=False,
            prefill_chunk_size=chunk if input_ids.shape[-1] > chunk else None,
            pad_token_id=0 if padding is None else padding,
        )
        model.generate(  # type: ignore[operator]
            input_ids,
            attention_mask=torch.ones_like(input_ids) if attention_mask is None else attention_mask,
            generation_config=how,
            **with_cache(cache),
        )
        return cls(model, cache, input_ids)

    @property
    def _rows(self) -> int:
        layer: Any = self.cache.layers[0] if self.cache.layers else None
        return layer.groups[0].keys.shape[0] if layer is not None and layer.groups else 0

    def cache_for(self, input_ids: Tensor) -> Cache:
        """A cache of its own for tokens [B', N'] that begin like these, to be given to `generate` with all N' tokens.

        It has seen the longest common beginning, at most N' - 1 tokens. One row may be continued by many; otherwise B'
        is B. Raises ConfigurationError for other rows, for tokens that begin otherwise, and where the pattern has
        forgotten what the tokens after the common beginning may read.
        """
        rows, columns = input_ids.shape
        if self._rows not in (1, rows):
            raise ConfigurationError(
                "prefix-rows", f"a prefix of {self._rows} rows cannot be continued by {rows}; give as many, or read one"
            )
        width = min(columns - 1, self.input_ids.shape[1])
        differ = (input_ids[:, :width].cpu() != self.input_ids[:, :width]).any(0).nonzero()
        common = int(differ[0]) if len(differ) else width
        if common < 1:
            raise ConfigurationError(
                "prefix-not-shared",
                f"the {columns} tokens to go on with do not begin like the {self.input_ids.shape[1]} that were read;"
                " without a cache, `generate` reads them anew",
            )
        cache: Cache = copy.deepcopy(self.cache)
        try:
            cache.crop(common - self.input_ids.shape[1])
        except ConfigurationError as error:
            raise ConfigurationError(
                "prefix-forgotten",
                f"the tokens to go on with share {common} of the {self.input_ids.shape[1]} that were read, and the"
                f" cache cannot go back so far ({error}); read them anew with Prefix.read(model, input_ids)",
            ) from error
        if rows > self._rows:
            cache.batch_repeat_interleave(rows)
        return cache

    def save(self, path: str | Path) -> None:
        """Write tokens, slots and what tells the model into one safetensors file, atomically.

        Raises CheckpointError where the disk refuses.
        """
        layers = _layers(self.cache)
        tensors = {"input_ids": self.input_ids}
        for number, layer in enumerate(layers):
            longest = max(layer.lengths)
            for group, slots in enumerate(layer.groups):
                used = slots.plan.used(longest)
                for name in _STATES:
                    held = getattr(slots, name)[:, :, :used]
                    tensors[f"{number}.{group}.{name}"] = held.detach().cpu().contiguous()
        first = layers[0]
        notes = {
            "version": _VERSION,
            "model": _identity(self.model),
            "layers": [_note(layer) for layer in layers],
            "options": {"restorable": first.restorable, "max_tokens": first.max_tokens},
            "seen": first.seen._asdict(),
        }
        with replacing_file(Path(path)) as temporary:
            save_file(tensors, temporary, metadata={_NOTES: json.dumps(notes)})

    @classmethod
    def load(cls, path: str | Path, model: PreTrainedModel) -> Self:
        """Read what `save` wrote, for the same model: equal weights, dtypes and patterns, on any device.

        Raises CheckpointError for a file that is damaged or of another version, ConfigurationError for one of another
        model or another pattern.
        """
        path = Path(path)
        notes = read_notes(path, _NOTES)
        if notes.get("version") != _VERSION:
            raise CheckpointError(
                "prefix-version",
                f"{path} is of version {shown(notes.get('version'))}, and this is version {_VERSION}; read its tokens"
                " anew with Prefix.read",
            )
        own, saved = _identity(model), notes.get("model")
        if saved != own:
            raise ConfigurationError("prefix-of-other-model", _difference(path, saved, own))
        try:
            return cls(model, _cache(model, notes, tensors := read_tensors(path)), tensors["input_ids"])
        except CheckpointError:
            raise
        except (AsterismError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error


def _cache(model: PreTrainedModel, notes: dict[str, Any], tensors: dict[str, Tensor]) -> PatternCache:
    """The cache that was saved, on the device of the model. What it raises for damaged notes is of any kind."""
    options = {name: notes["options"][name] for name in ("restorable", "max_tokens")}
    ours = isinstance(model.config, AsterismConfig)
    cache = PatternCache(model.config if ours else None, **options)
    for layer in [] if ours else notes["layers"]:
        cache.add_layer(parse(layer["pattern"]))
    seen = Seen(**notes["seen"])
    lengths = seen.lengths if isinstance(seen.lengths, int) else tuple(seen.lengths)
    seen = seen._replace(lengths=lengths, recent=tuple(seen.recent))
    _check(seen, tensors["input_ids"])
    if len(cache.layers) != (len(notes["layers"]) if ours else len(find_attention(model))):
        raise ValueError(f"it has {len(notes['layers'])} layers, and its model another number")
    for number, (layer, note) in enumerate(zip(_layers(cache), notes["layers"], strict=True)):
        if layer.pattern.text != note["pattern"]:
            raise ValueError(f"layer {number} has the pattern {shown(note['pattern'])}, its model {layer.pattern}")
        groups = range(len(note["widths"]))
        states = [tuple(tensors[f"{number}.{group}.{name}"].to(model.device) for name in _STATES) for group in groups]
        layer.restore(seen, note["heads"], note["widths"], states)
    return cache


def _layers(cache: Cache) -> list[Any]:
    return list(cache.layers)


def _note(layer: Any) -> dict[str, Any]:
    """What a file says about a layer: its pattern, its key heads, and the slots of each group of them."""
    widths = [slots.width for slots in layer.groups]
    return {"pattern": layer.pattern.text, "heads": layer.key_heads, "widths": widths}


def _check(seen: Seen, input_ids: Tensor) -> None:
    """Raises ValueError for numbers that no cache can have come to."""
    lengths = [seen.lengths] * len(input_ids) if isinstance(seen.lengths, int) else list(seen.lengths)
    numbers = [*lengths, seen.columns, seen.padded, seen.excess]
    whole = all(type(number) is int and number >= 0 for number in numbers)
    fits = input_ids.shape[1:] == (seen.columns,) and len(lengths) == len(input_ids)
    if not (whole and fits and max(lengths) <= seen.columns and seen.padded <= seen.columns):
        raise ValueError("the numbers of tokens contradict each other")
    if not all(set(row) <= {"0", "1"} and len(row) <= seen.padded for row in seen.recent):
        raise ValueError("what is remembered of its padding is none")


def _identity(model: PreTrainedModel) -> dict[str, str]:
    """What tells one model from another: its class, its pattern, its configuration, and values of all that it saves."""
    fields = {name: value for name, value in model.config.to_diff_dict().items() if name not in _NO_MATTER}
    pattern = {name: fields.pop(name) for name in sorted(fields) if "pattern" in name}
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().flatten()
        chosen = values[:: max(1, len(values) // _SAMPLED)].cpu()
        weights.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        weights.update(chosen.contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "class": type(model).__name__,
        "pattern": json.dumps(pattern, sort_keys=True, default=str),
        "configuration": hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest(),
        "weights": weights.hexdigest(),
    }


def _difference(path: Path, saved: Any, own: dict[str, str]) -> str:
    """In words, what about the model of a file differs first from the model at hand."""
    saved = saved if isinstance(saved, dict) else {}
    what = next(name for name in own if saved.get(name) != own[name])
    values = f" ({shown(saved.get(what))}, here {own[what]})" if what in ("class", "pattern") else ""
    return (
        f"{path} was written with a model of {_OTHER[what]}{values}, and its keys would mean nothing to this one; load"
        " that model, or read the tokens anew with Prefix.read"
    )
