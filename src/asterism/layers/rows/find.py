"""Makes Rows from the arguments of a call."""

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from asterism.errors import ConfigurationError
from asterism.layers.kept import NewTokens
from asterism.layers.rows.documents import find_documents
from asterism.layers.rows.here import RowsHere
from asterism.layers.rows.meeting import Said, meet
from asterism.layers.rows.padding import Packing, count_positions, is_known_full, real_tokens
from asterism.layers.rows.rows import Rows, check_documents
from asterism.layers.rows.sharded import ShardedRows
from asterism.layers.rows.trees import Parents, find_trees
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.context import own_range, shards_of


class CountsTokens(Protocol):
    """A cache, or a layer's part of one, as far as it counts the tokens that it has seen."""

    def new_tokens(self, width: int, counts: Sequence[int] | None = None) -> NewTokens: ...


@runtime_checkable
class KeepsShards(Protocol):
    """A cache whose keys stay on the ranks that made them."""

    layers: list[Any]

    def begin(self, positions: Tensor) -> None:
        """Begin with a prompt whose tokens on this rank stand at these
        positions, int64 [B or 1, N]."""
        ...


def is_sharded() -> bool:
    """Whether the caller is within `sequence_parallel`."""
    return sharding() is not None


def refuse_shifting(given: str, wanted: str) -> None:
    """Raises ConfigurationError within `sequence_parallel`: the token after a shard is on another rank."""
    if is_sharded():
        raise ConfigurationError(
            "not-shifted",
            f"{given} must be shifted before a sequence is sharded: give {wanted}, which asterism.parallel.shard"
            " makes from whole rows",
        )


def rows_of(
    hidden: Tensor,
    *,
    positions: Tensor | None = None,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    documents: Sequence[int] | None = None,
    cache: CountsTokens | None = None,
) -> Rows:
    """Make the Rows of tokens [B, N, ...] for a single layer; within `sequence_parallel`, of one shard.

    positions  int64 [B or 1, N]; -1 for padding, which comes last in its row. By default tokens follow those already
               in the cache, as they always do for the pattern.
    key_mask   bool [B, N]: True where the key may be read
    segments   int [B, N]: a query reads only keys of its own segment
    lengths    in place of key_mask, the number of real tokens of each whole row; they come first. A pattern that
               depends on the length then uses the length of each row.
    documents  lengths of the documents in the batch, through all whole rows laid end to end; each follows the pattern
               by itself
    cache      this layer of a cache, which has seen the tokens before these

    Raises ConfigurationError for lengths together with documents or a key_mask.
    """
    check_documents(lengths, documents)
    if lengths is not None and key_mask is not None:
        raise ConfigurationError(
            "lengths-and-mask", "got both lengths and key_mask, which both tell tokens from padding: give one of them"
        )
    tokens = None
    if cache is not None:
        counts = None if positions is None else (positions >= 0).sum(dim=1).expand(len(hidden)).tolist()
        tokens = cache.new_tokens(hidden.shape[1], counts)
    shards = shards_of(hidden)
    first, past = own_range(shards, hidden.shape[1])
    columns = torch.arange(first, past, device=hidden.device)[None]
    if positions is None:
        positions = columns if tokens is None else tokens.positions(hidden.device)
    if lengths is not None:
        key_mask = columns < torch.tensor(lengths, device=hidden.device)[:, None]
    given: dict[str, Any] = {
        "positions": positions,
        "real": key_mask,
        "lengths": None if lengths is None else tuple(lengths),
        "documents": None if documents is None else tuple(documents),
        "segments": segments,
        "tokens": tokens,
    }
    if shards is None:
        return RowsHere(**given, mask=key_mask)
    return ShardedRows(**given, context=cast(SequenceParallel, sharding()), shards=shards)


def kept_rows(tokens: int, attention_mask: Tensor | None) -> Rows | None:
    """Make the Rows of a source with keys in a cache, real tokens first; None if all are real.

    attention_mask [B, tokens] of any dtype, 1 for tokens and 0 for padding, as the source was given it
    """
    if attention_mask is None:
        return None
    mask = real_tokens(attention_mask, len(attention_mask), 0, tokens)
    if is_known_full(mask):
        return None
    columns = torch.arange(tokens, device=mask.device)[None]
    return RowsHere(columns, real=columns < mask.sum(dim=1, keepdim=True))


def find_rows(
    tokens: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    *,
    parents: Parents | None = None,
    cache: Any = None,
    looks: bool = True,
) -> Rows:
    """Make the Rows of a model's tokens [B, N, ...] of any dtype; the other arguments are those of
    `AsterismModel.forward`.

    Within `sequence_parallel`, all ranks call it together, each for the tokens that it holds; cu_seqlens are those of
    whole rows. `looks` says whether it is worth asking if all tokens are real, which stops a GPU.

    Raises ConfigurationError, on all ranks, for arguments that contradict each other or differ between ranks, and
    KernelError for `cu_seqlens` that do not divide a row.
    """
    said = Said(tokens, attention_mask, position_ids, cu_seqlens)
    if (context := sharding()) is not None:
        if parents is not None:
            raise ConfigurationError(
                "parents-in-shards",
                "parents cannot be given within sequence_parallel: call the model outside of it, or divide the trees"
                " among processes",
            )
        return _sharded(context, said, cache)
    if cache is not None and any(given is not None for given in (position_ids, cu_seqlens, parents)):
        raise ConfigurationError(
            "cache-with-positions",
            "a cache continues one sequence in each row and counts its tokens: leave out position_ids, cu_seqlens and"
            " parents",
        )
    batch, new = tokens.shape[:2]
    seen = 0 if cache is None else cache.get_seq_length()
    mask = packing = None
    if attention_mask is not None:
        # The padding of earlier columns is already in the cache; a mask may leave them out.
        earlier = 0 if attention_mask.shape[-1] == new else seen
        mask = real_tokens(attention_mask, batch, earlier, new)[:, earlier:]
    if parents is not None:
        trees = find_trees(parents, cu_seqlens, position_ids, mask, tokens)
        return RowsHere(trees.positions, documents=trees.forest, mask=mask)
    documents = find_documents(position_ids, cu_seqlens, mask, tokens)
    if documents is not None:
        return RowsHere(documents.positions, documents=documents.sizes, mask=mask)
    if mask is not None and not (looks and is_known_full(mask)):
        packing = Packing.of(mask)
    if cache is not None:
        padding = () if packing is None else packing.known()
        ours = cache.layers[0].new_tokens(new, *padding)
        return RowsHere(ours.positions(tokens.device), tokens=ours, packing=packing, mask=mask, seen=seen)
    positions = count_positions(None if packing is None else packing.real, new, tokens.device)
    return RowsHere(positions, packing=packing, mask=mask)


def _sharded(context: SequenceParallel, said: Said, cache: Any) -> ShardedRows:
    if cache is not None and not isinstance(cache, KeepsShards):
        raise ConfigurationError(
            "cache-in-shards",
            "a cache cannot be used in a forward pass within sequence_parallel: call the model's `generate`, or set"
            " use_cache=False",
        )
    agreed = meet(context, said)
    shards, real, device = agreed.shards, agreed.real, said.tokens.device
    own = context.range(shards)
    positions = torch.arange(*own, device=device)[None]
    if agreed.documents is not None:
        positions, real = agreed.documents.positions[:, slice(*own)], None
    elif real is not None:
        positions = torch.where(real, positions, -1)
    rows = ShardedRows(
        positions,
        real=real,
        lengths=agreed.lengths,
        documents=None if agreed.documents is None else agreed.documents.sizes,
        context=context,
        shards=shards,
    )
    if cache is not None:
        cache.begin(positions)
        rows.tokens = cache.layers[0].new_tokens(shards.length, agreed.lengths)
    return rows
