"""A layer of the cache: for each group of heads, slots that are reused once no query can read their keys.

Which slot takes which key, and when it is free again, follows from the pattern and the position alone
(`asterism.compiler.slots`): a window goes round in a ring, `fixed` keeps the present block and the summary cells,
`strided` everything. So all layers and rows share one plan, which is known on the host: a token costs no
synchronisation, no copy of what is kept, and no question to the pattern.

Heads that keep different keys have slots of their own. A slot stays unchanged for `restorable` tokens after the last
read of its key, so the last `restorable` tokens can be removed again (`crop`).

Invariant: a slot that a query may read holds the key at the position that the plan says, whatever was taken back.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from asterism.compiler import head_groups
from asterism.compiler.slots import slot_plan
from asterism.errors import ConfigurationError
from asterism.layers.kept import Kept, NewTokens, Seen
from asterism.models.cache.slot_tables import find_step
from asterism.models.cache.slots import Slots
from asterism.patterns import Pattern, require_causal

RESTORABLE = 64
"""How many of the last tokens can always be taken back: more than transformers' assistants guess at a time."""

KeysAndValues = tuple[torch.Tensor, torch.Tensor]

OUTSIDE_GRAPHS = "the slots of a cache are made by its first tokens: give the model these uncompiled, the next compiled"


class NoTensorsError(ConfigurationError, AttributeError):
    """Keys and values are asked for as tensors, one for all tokens: for `hasattr` there are none."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "cache-without-tensors",
            f"layers[i].{name}: a cache that forgets by a pattern holds no tensor of all {name}; get_seq_length() says"
            " how many tokens it has seen, and a model without a pattern keeps all in a DynamicCache",
        )


class PatternCacheLayer(CacheLayerMixin):
    """The keys [B, Hkv, W, D] and values [B, Hkv, W, Dv] of one layer, in W slots, that its pattern can still read.

    They have the dtype of the first that come, or the wider one where later ones are wider.

    restorable  how many of the last tokens can be taken back, at least
    max_tokens  make all slots at once, for rows of so many tokens. Then shapes stay fixed, as torch.compile needs it,
                and a token that finds no slot is refused. A bounded pattern gets no more slots than it ever needs, so
                for it the number may be as high as you like, and rows have no limit then.
    seen        what the layer has seen

    Raises PatternError for a pattern that a causal model cannot use.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, pattern: Pattern, *, restorable: int = RESTORABLE, max_tokens: int | None = None) -> None:
        super().__init__()
        require_causal(pattern)
        for name, number in (("restorable", restorable), ("max_tokens", max_tokens)):
            if number is not None and (not isinstance(number, int) or number < (name == "max_tokens")):
                raise ConfigurationError("cache-max-tokens", f"{name} must be a number of tokens, got {number!r}")
        self.pattern, self.restorable, self.max_tokens = pattern, restorable, max_tokens
        self._bound = slot_plan(pattern, restorable).bound  # here, as torch.compile cannot look into the store
        self.seen = Seen()
        self.groups: list[Slots] = []
        self._latest: list[NewTokens] = []

    @property
    def keys(self) -> torch.Tensor | None:
        """Refused with NoTensorsError: keys lie in slots, those of each group of heads in its own."""
        raise NoTensorsError("keys")

    @keys.setter
    def keys(self, none: torch.Tensor | None) -> None:  # what transformers does first
        pass

    @property
    def values(self) -> torch.Tensor | None:
        """Refused as `keys` are."""
        raise NoTensorsError("values")

    @values.setter
    def values(self, none: torch.Tensor | None) -> None:
        pass

    @property
    def is_compileable(self) -> bool:  # type: ignore[override]
        """Whether shapes stay fixed."""
        return self.max_tokens is not None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Empty slots of the batch size, head counts, widths, dtypes and device of the first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True
        self._shapes = key_states.shape[:2] + key_states.shape[3:] + value_states.shape[3:]
        heads = max(self.pattern.heads, key_states.shape[1])
        groups = head_groups(self.pattern, heads, key_states.shape[1])
        self.groups = [Slots(group, heads, self.restorable) for group in groups]
        for slots in self.groups:
            width = 0 if self.max_tokens is None else slots.plan.capacity(self.max_tokens)
            slots.allocate(key_states, value_states, width)

    def new_tokens(
        self,
        width: int,
        counts: Sequence[int] | None = None,
        padded: int | None = None,
        recent: tuple[str, ...] = (),
    ) -> NewTokens:
        """The next `width` columns; of each row, `counts` are real, by default all; the others as in NewTokens.

        Layers of one cache get the same ones, so that what follows from the pattern is found once for all of them.
        """
        if torch.compiler.is_compiling():
            return NewTokens(self.seen, width, counts, padded, recent)
        if not (self._latest and self._latest[0].are(self.seen, width, counts, padded, recent)):
            self._latest[:] = [NewTokens(self.seen, width, counts, padded, recent)]
        return self._latest[0]

    def join(self, other: "PatternCacheLayer") -> None:
        """Become a layer of the same cache as another."""
        self._latest = other._latest

    def extend(self, keys: torch.Tensor, values: torch.Tensor, tokens: NewTokens) -> list[Kept]:
        """Add new tokens; return what they may read, in parts. For the first tokens that is nothing but themselves.

        keys [B, Hkv, N, D], values [B, Hkv, N, Dv] of one dtype, the same `tokens` for all layers.

        Raises ConfigurationError for other rows or heads than before, for tokens that do not follow those seen, and
        beyond `max_tokens`.
        """
        if not torch.compiler.is_compiling():
            self._prepare(keys, values, tokens)
            return self._extend(keys, values, tokens)
        if self._is_traceable(tokens):
            return self._extend(keys, values, tokens)
        return self._extend_outside_graphs(keys, values, tokens)

    def _is_traceable(self, tokens: NewTokens) -> bool:
        is_fixed = self.is_initialized and self.max_tokens is not None and not self.pattern.chooses
        return is_fixed and 0 < tokens.width <= self.restorable + 1

    @torch.compiler.disable(reason=OUTSIDE_GRAPHS)
    def _extend_outside_graphs(self, keys: torch.Tensor, values: torch.Tensor, tokens: NewTokens) -> list[Kept]:
        return self.extend(keys, values, tokens)

    def _extend(self, keys: torch.Tensor, values: torch.Tensor, tokens: NewTokens) -> list[Kept]:
        """Slots are written before they are read, unless the new keys would replace some that are still read."""
        # Blocks are chosen in a sequence of all tokens, each at its place.
        few = tokens.width <= self.restorable + 1 and not self.pattern.chooses
        parts: list[Kept] = []
        for slots in self.groups:
            if not few and self.seen.columns:
                parts += slots.read_sequence(tokens, keys, values)
            step = find_step(slots.plan, tokens, slots.width, self.device, few)
            slots.write(step, keys, values)
            if few:
                parts.append(slots.read(step, tokens, keys))
        self.seen = tokens.after
        return parts

    def _prepare(self, keys: torch.Tensor, values: torch.Tensor, tokens: NewTokens) -> None:
        """Check the new tokens, and make room for them."""
        if not keys.shape[2]:
            raise ConfigurationError("cache-extended-by-none", "a cache is extended by at least one token, got none")
        shapes = keys.shape[:2] + keys.shape[3:] + values.shape[3:]
        if not self.is_initialized or (not self.seen.columns and (shapes, keys.device) != (self._shapes, self.device)):
            self.lazy_initialization(keys, values)
        if shapes != self._shapes:
            raise ConfigurationError(
                "cache-shapes",
                f"the cache holds [rows, key heads, key width, value width] {list(self._shapes)}, got {list(shapes)}",
            )
        if tokens.before is not self.seen and tokens.before != self.seen:
            raise ConfigurationError(
                "cache-order", f"the cache has seen {self.seen}, but the new tokens follow {tokens.before}"
            )
        lengths = tokens.after.lengths
        longest = lengths if isinstance(lengths, int) else max(lengths)
        for slots in self.groups:
            if keys.dtype != slots.keys.dtype:
                wide = torch.promote_types(keys.dtype, slots.keys.dtype)
                slots.keys, slots.values = slots.keys.to(wide), slots.values.to(wide)
            slots.make_room(longest, may_grow=self.max_tokens is None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Refused with ConfigurationError: keys without their positions cannot be told apart; `extend` takes both."""
        raise ConfigurationError(
            "cache-update",
            "a PatternCache stores keys together with their positions; call `layer.extend(keys, values,"
            " layer.new_tokens(count))` of `cache.layers[i]`",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "PatternCacheLayer":
        """Slots of its own; plans are shared, and so is what layers of one cache have found out."""
        other = copy.copy(self)
        other.groups = [slots.copied() for slots in self.groups]
        other._latest = memo.setdefault(id(self._latest), [])
        return other

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many real tokens, padding not counted, each row has seen."""
        lengths = self.seen.lengths
        return (lengths,) * (self._shapes[0] if self.is_initialized else 1) if isinstance(lengths, int) else lengths

    def kept(self, row: int = 0) -> dict[int, list[int]]:
        """For each key head, the positions of the keys that a later query may read in this row."""
        return {
            head: slots.plan.living(self.seen.of(row))[1].tolist()
            for slots in self.groups
            for head in slots.group.key_heads
        }

    @property
    def key_heads(self) -> int:
        """Hkv, once there are keys."""
        return int(self._shapes[1])

    @property
    def nbytes(self) -> int:
        """The memory of all slots, keys and values, in bytes."""
        return sum(slots.keys.nbytes + slots.values.nbytes for slots in self.groups)

    def get_seq_length(self) -> int:
        """How many tokens have been seen, padding included; not how many are kept."""
        return self.seen.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask over all tokens seen and `query_length` new ones."""
        return self.seen.columns + query_length, 0

    def get_max_length(self) -> int:
        """How many tokens a row may have; -1 without a limit."""
        endless = self.max_tokens is None or (self._bound is not None and self._bound <= self.max_tokens)
        return -1 if endless or self.max_tokens is None else self.max_tokens

    def reset(self) -> None:
        """Forget everything, batch size included; slots stay where they are for the next batch of the same size."""
        self.seen = Seen()

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -tokens_to_remove columns, as transformers calls it (assisted decoding, prompt lookup).

        They may be padding, of which the cache remembers 64 columns. Raises ConfigurationError for more than are there,
        for columns whose padding it does not remember, and where the pattern has forgotten a key since that a query in
        their place may read: at most `restorable` tokens are always given back.
        """
        self.seen = self.seen_after_crop(tokens_to_remove)

    def seen_after_crop(self, tokens_to_remove: int) -> Seen:
        """What is left to have been seen after `crop`, which raises as this does."""
        # transformers 5.17 gives a tensor of one number where it counts matches.
        count, seen = -int(tokens_to_remove), self.seen
        if not 0 <= count <= seen.columns:
            raise ConfigurationError(
                "crop-count",
                f"crop({tokens_to_remove}) of {seen.columns} tokens: give minus the number of tokens to remove",
            )
        if count > (most := seen.most_removable):
            raise ConfigurationError(
                "crop-padding",
                f"crop({tokens_to_remove}) would remove columns whose padding the cache does not remember: at most"
                f" {most} columns can be removed",
            )
        less = seen.without(count)
        if less.excess > self.restorable and not all(
            slots.plan.is_restorable(less.of(row), seen.of(row) + seen.excess)
            for slots in self.groups
            for row in range(seen.rows)
        ):
            raise ConfigurationError(
                "crop-forgotten",
                f"crop({tokens_to_remove}) would bring back keys that the pattern {self.pattern} has forgotten: at"
                f" most {self.restorable - seen.excess} tokens can be removed"
                " (PatternCache(..., restorable=n) allows n)",
            )
        return less

    def restore(self, seen: Seen, heads: int, widths: Sequence[int], states: Sequence[KeysAndValues]) -> None:
        """Become a layer of Hkv = `heads` that has seen this.

        `states` are keys [B, h, w, D] and values [B, h, w, Dv] of each group of heads, in any floating dtype: the first
        w of W = `widths` slots. Raises ValueError where they cannot be those of this pattern.
        """
        self.lazy_initialization(*(x.new_empty(len(x), heads, 0, x.shape[3]) for x in states[0]))
        if not len(self.groups) == len(states) == len(widths):
            raise ValueError(f"it has {len(states)} groups of heads, but the pattern has {len(self.groups)}")
        for slots, (keys, values), width in zip(self.groups, states, widths, strict=True):
            longest = max(map(seen.of, range(seen.rows)))
            slots.restore(keys, values, width, longest)
        self.seen = seen

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes the old row beam_idx[i] (beam search), of int64 [B']."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, copies next to each other."""
        if self.is_initialized:
            rows = torch.arange(self._shapes[0], device=self.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows `indices` (int64 [B'] or bool [B]), in that order."""
        if not self.is_initialized:
            return
        rows = indices.to(self.device)
        for slots in self.groups:
            slots.choose_rows(rows)
        before, self._shapes = self._shapes[0], torch.Size((self.groups[0].keys.shape[0], *self._shapes[1:]))
        if self.seen.recent or not isinstance(self.seen.lengths, int):
            self.seen = self.seen.of_rows(torch.arange(before, device="cpu")[indices.cpu()].tolist())
