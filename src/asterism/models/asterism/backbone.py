"""The backbone of every Asterism model: embeddings, blocks whose mixers the configuration names, and a last norm.

With causal patterns it is the decoder of Child 2019, with others an encoder in the manner of BERT, BigBird, Longformer
or FNet; the heads stand in files of their own. The usual methods of transformers work: `save_pretrained`,
`from_pretrained`, gradient checkpointing, the Trainer.

Positions count the real tokens of each row, and the cache remembers how many each row has seen; `position_ids` only say
where the documents of a packed row begin.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError, shown
from asterism.kernels import Dropout
from asterism.layers import BucketedPositions, PersistentAttention, SparseAttention
from asterism.layers.padding import Packing, count_positions, is_known_full, real_tokens
from asterism.memory import least_model_memory, shortage
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.blocks import make_block, make_distances, make_norm, make_positions
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.cache import PatternCache, PatternCacheLayer
from asterism.models.cache.sharded import ShardedCache
from asterism.models.columns import SlotColumns
from asterism.models.documents import PackedDocuments, find_documents
from asterism.models.sharded import find_rows, with_all_ranks
from asterism.parallel import SequenceParallel, sharding
from asterism.patterns import Pattern

_LAYER = 2**48
"""What the seeds of dropout of two layers differ by."""


class Reading(NamedTuple):
    """What the blocks of a decoder read of a source.

    states  [B, S, hidden_size]; None where a cache has the keys of all layers
    layers  of each layer, what its cross attention is told
    """

    states: torch.Tensor | None
    layers: list[dict[str, Any]]


class Asked(NamedTuple):
    """What a call says of its tokens, as AsterismModel.forward takes it; the cache is one of ours."""

    attention_mask: torch.Tensor | None = None
    cache: Cache | ShardedCache | None = None
    position_ids: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | Sequence[int] | None = None


class LaidTokens(NamedTuple):
    """Embedded tokens [B, N, ...] as the blocks read them.

    positions     int64 [B or 1, N], -1 for padding
    columns_seen  how many columns a table of positions must have, unless padding is among them
    columns       how what is computed is returned
    told, caches  what each layer must be told, and its part of a cache
    """

    embedded: torch.Tensor
    positions: torch.Tensor
    columns_seen: int
    columns: SlotColumns
    told: list[dict[str, Any]]
    caches: list[PatternCacheLayer | None]


class AsterismModel(AsterismPreTrainedModel):
    """Embeddings of tokens, types and positions, blocks, and the last norm of pre-norm blocks.

    Raises ConfigurationError or PatternError for a configuration that cannot work, or that has a decoder.
    """

    first_layer: ClassVar[int] = 0
    """Which number the first layer has where seeds of dropout are counted."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        config.require_one_stack(type(self).__name__)
        config.check()
        layers = config.num_hidden_layers
        if reason := shortage(least_model_memory({"num_layers": layers}), f"a model of {layers:,} layers"):
            raise ConfigurationError(reason)
        width = config.embedding_width
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.embed_types = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.positions = make_positions(config)
        self.relative = make_distances(config, self._reads_both_sides(config))
        self.global_tokens = nn.Embedding(config.global_tokens, width) if config.global_tokens else None
        has_norm, has_projection = config.embedding_norm, config.embedding_size is not None
        self.embedding_norm = make_norm(config, width) if has_norm else nn.Identity()
        self.embedding_projection = nn.Linear(width, config.hidden_size) if has_projection else nn.Identity()
        self.embedding_dropout = nn.Dropout(config.dropout if has_norm or self.is_one_of_two else 0.0)
        mixers = config.layer_mixers()
        self.layers = nn.ModuleList(
            make_block(config, mixer, cross) for mixer, cross in zip(mixers, self._cross_patterns(config), strict=True)
        )
        self.norm = make_norm(config, config.hidden_size) if config.block == "pre_norm" else nn.Identity()
        self._fourier_layers = [not isinstance(mixer, Pattern) for mixer in mixers]
        self.by_length = [isinstance(mixer, Pattern) and mixer.depends_on_length for mixer in mixers]
        """Of each layer, whether its pattern must be laid over each row's own length."""
        self.reads_padding = config.global_projections is not None or not all(
            isinstance(mixer, Pattern) and mixer.is_causal for mixer in mixers
        )
        """Whether some layer would read the padding behind the real tokens, were it not masked."""
        self.needs_padding = self.reads_padding or any(self.by_length)
        """Whether some layer must be told which tokens are real."""
        self.post_init()

    is_one_of_two: ClassVar[bool] = False
    """Whether this is a stack of an encoder-decoder, which has dropout on its embeddings as Vaswani 2017 has."""

    @staticmethod
    def _reads_both_sides(config: AsterismConfig) -> bool:
        """Whether keys after a query have buckets of distances of their own."""
        return not all(isinstance(mixer, Pattern) and mixer.is_causal for mixer in config.layer_mixers())

    @staticmethod
    def _cross_patterns(config: AsterismConfig) -> Sequence[Pattern | None]:
        """By which pattern each layer reads a source; None where it reads none."""
        return [None] * config.num_hidden_layers

    @can_return_tuple
    @with_all_ranks
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    ) -> BaseModelOutputWithPast:
        """Hidden states [B, N, hidden_size] of N new tokens.

        input_ids        int64 [B, N], or in their place inputs_embeds [B, N, embedding_size or hidden_size], which are
                         taken as they are: embedding_scale is for the rows of the table alone
        attention_mask   [B, N] or, when the cache has seen S columns, [B, S + N]: 1 for tokens, 0 for padding, on any
                         side. A padded column returns what the last token before it returns, or 0 without one.
        token_type_ids   int64 [B, N], by default 0; a model without types takes only 0
        past_key_values  a PatternCache, or an empty DynamicCache, which is given the layers of one; it is extended
        use_cache        make a PatternCache when none is given, and return it
        dropout_seed     in [0, 2^48), needed in training where attention drops: another one for each step
        position_ids     int64 [B or 1, N]: 0, 1, 2, ..., and from 0 again where, in a row that holds several documents,
                         the next one begins; or
        cu_seqlens       [documents + 1]: where documents begin, and N, as in `attend`, for every row alike. A document
                         is read as if it stood alone. Neither goes together with padding or a cache.

        Raises ConfigurationError for more tokens than the model has positions, for a cache it cannot use, and for a
        cache with patterns that are not causal.
        """
        embedded = self._add_types(self._embed(input_ids, inputs_embeds), token_type_ids)
        cache = self._find_cache(past_key_values, use_cache)
        asked = Asked(attention_mask, cache, position_ids, cu_seqlens)
        last, states = self._run(embedded, asked, output_hidden_states, self._dropout_arguments(dropout_seed))
        return BaseModelOutputWithPast(last_hidden_state=last, past_key_values=cache, hidden_states=states)

    def _embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigurationError("give either input_ids or inputs_embeds, not both")
        if inputs_embeds is not None:
            return inputs_embeds
        embedded: torch.Tensor = self.embed_tokens(input_ids)
        return embedded if self.config.embedding_scale == 1 else embedded * self.config.embedding_scale

    def _run(
        self,
        embedded: torch.Tensor,
        asked: Asked,
        output_hidden_states: bool | None,
        dropouts: list[dict[str, Any]],
        reading: Reading | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None]:
        """The last hidden states of embedded tokens, and those of all layers where they are wanted."""
        context = sharding()
        laid = self._lay_out(embedded, asked) if context is None else self._lay_out_shard(context, embedded, asked)
        embedded, columns = laid.embedded, laid.columns
        if context is not None and self.relative is not None:
            # A rank that computes no pair has no gradient of their distances, but 0, so that ranks can add them.
            weight = self.relative.weight
            nothing = weight.masked_fill(torch.ones_like(weight, dtype=torch.bool), 0).sum()
            embedded = embedded + nothing.to(embedded.dtype)
        if self.positions is not None:
            self._check_length(laid.columns_seen, laid.positions)
            embedded = embedded + self.positions(laid.positions.clamp(min=0)).to(embedded.dtype)
        hidden, positions = self._begin(embedded, laid.positions, columns.front)
        calls = self._calls(laid.told, dropouts, reading)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = []
        for block, layer_cache, arguments in zip(self.layers, laid.caches, calls, strict=True):
            if wanted:
                states.append(columns.by_column(hidden))
                hidden = columns.by_slot(states[-1], hidden)
            source = [] if reading is None else [reading.states]
            hidden = block(hidden, *source, positions=positions, cache=layer_cache, **arguments)
        last = columns.by_column(self.norm(hidden))
        return last, (*states, last) if wanted else None

    def _lay_out(self, embedded: torch.Tensor, asked: Asked) -> LaidTokens:
        """Where the tokens of a batch stand that lies on this device alone."""
        cache = cast(Cache | None, asked.cache)
        documents = self.find_documents(asked.position_ids, asked.cu_seqlens, asked.attention_mask, embedded, cache)
        own_caches = [None] * len(self.layers) if cache is None else cache.layers
        caches = cast(list[PatternCacheLayer | None], own_caches)
        seen = 0 if cache is None else cache.get_seq_length()
        packing = self._pack(asked.attention_mask, embedded, seen, looks=self.needs_padding or cache is not None)
        if packing is not None:
            embedded = packing.pack(embedded)
        cached: dict[str, Any] = {}
        if documents is not None:
            positions, packing = documents.positions, None  # no padding
        elif caches[0] is not None:
            padding = () if packing is None else packing.known()
            cached["tokens"] = tokens = caches[0].new_tokens(embedded.shape[1], *padding)
            positions = tokens.positions(embedded.device)
        else:
            real = None if packing is None else packing.real
            positions = count_positions(real, embedded.shape[1], embedded.device)
        told = [padding | cached for padding in self._padding_arguments(packing, documents)]
        columns = SlotColumns(self.config.global_tokens, packing, None)
        return LaidTokens(embedded, positions, seen + embedded.shape[1], columns, told, caches)

    def _lay_out_shard(self, context: SequenceParallel, embedded: torch.Tensor, asked: Asked) -> LaidTokens:
        """Where the tokens of this rank's shard stand in the sequences of all ranks."""
        cache = asked.cache
        if cache is not None and not isinstance(cache, ShardedCache):
            raise ConfigurationError(
                "a cache cannot be used in a forward pass within sequence_parallel: call the model's `generate`, or set"
                " use_cache=False"
            )
        rows = find_rows(context, embedded, asked.attention_mask, asked.position_ids, asked.cu_seqlens)
        if rows.documents is not None and (reason := self._cannot_pack()):
            raise ConfigurationError(f"{reason}, so documents cannot be packed into rows: give each document a row")
        front = self.config.global_tokens
        told = rows.mixer_arguments(self.by_length, self._fourier_layers, front, self.needs_padding)
        columns = SlotColumns(front if context.rank == 0 else 0, None, rows.real)
        caches: list[Any] = [None] * len(self.layers)
        if cache is not None:
            caches = cache.layers
            cache.begin(rows.positions)
            tokens = caches[0].new_tokens(rows.shards.length, rows.lengths)
            told = [known | {"tokens": tokens} for known in told]
        if self.positions is not None:
            self._check_end(rows.longest)
        return LaidTokens(embedded, rows.positions, 0, columns, told, caches)

    def _calls(
        self, padding: list[dict[str, Any]], dropouts: list[dict[str, Any]], reading: Reading | None
    ) -> list[dict[str, Any]]:
        """What each block is told beside positions and its cache."""
        distances: dict[str, Any] = {}
        if self.relative is not None:
            name = "bias" if isinstance(self.relative, BucketedPositions) else "relative"
            distances[name] = self.relative()
        calls = []
        for layer, dropout in enumerate(dropouts):
            attends = isinstance(cast(Any, self.layers[layer]).mixer, SparseAttention)
            cross = {} if reading is None else {"cross": reading.layers[layer]}
            calls.append(padding[layer] | dropout | (distances if attends else {}) | cross)
        return calls

    def span_penalty(self) -> torch.Tensor | None:
        """What adaptive spans add to the loss: the sum over the layers of their mean span, times the penalty."""
        if not self.config.adaptive_span:
            return None
        mixers = (cast(PersistentAttention, cast(Any, block).mixer) for block in self.layers)
        spans = torch.stack([mixer.adaptive_span.penalty() for mixer in mixers if mixer.adaptive_span is not None])
        return self.config.adaptive_span_penalty * spans.sum()

    def _add_types(self, embedded: torch.Tensor, token_type_ids: torch.Tensor | None) -> torch.Tensor:
        if self.embed_types is None:
            if token_type_ids is not None and token_type_ids.any():
                raise ConfigurationError("token_type_ids holds types, and this model has none (type_vocab_size 0)")
            return embedded
        if token_type_ids is None:
            return embedded + self.embed_types.weight[0]
        return embedded + self.embed_types(token_type_ids)

    def _pack(
        self, attention_mask: torch.Tensor | None, embedded: torch.Tensor, seen: int, looks: bool
    ) -> Packing | None:
        """How to bring the real tokens to the front; None where nothing is padded, if it `looks` at all."""
        if attention_mask is None:
            return None
        batch, new = embedded.shape[:2]
        # The padding of earlier columns is already in the cache; a mask may leave them out.
        columns = 0 if attention_mask.shape[-1] == new else seen
        mask = real_tokens(attention_mask, batch, columns, new)[:, columns:]
        # Asking whether all are real stops a GPU, which only caches and mixers that must be told about padding repay.
        return None if looks and is_known_full(mask) else Packing.of(mask)

    def _begin(self, embedded: torch.Tensor, positions: torch.Tensor, here: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the first block reads: global tokens in front, norm, width of the model; and where its tokens stand.

        `here` says how many of the global tokens are on this device: all, or none.
        """
        if self.global_tokens is not None:
            front = self.global_tokens.weight
            embedded = torch.cat([front[:here].expand(len(embedded), -1, -1), embedded], dim=1)
            behind = torch.where(positions < 0, -1, positions + len(front))
            places = torch.arange(here, device=positions.device).expand(len(positions), -1)
            positions = torch.cat([places, behind], dim=1)
        return self.embedding_dropout(self.embedding_projection(self.embedding_norm(embedded))), positions

    def _padding_arguments(
        self, packing: Packing | None, documents: PackedDocuments | None = None
    ) -> list[dict[str, Any]]:
        """What each layer must be told about padding and documents. Causal patterns need not know of padding: it is in
        everyone's future."""
        if documents is not None:
            return [{"documents": documents.sizes}] * len(self.layers)
        if packing is None or not self.needs_padding:
            return [{}] * len(self.layers)
        return packing.mixer_arguments(self.by_length, self.config.global_tokens)

    def _dropout_arguments(self, seed: int | None) -> list[dict[str, Any]]:
        """What each layer must be told about dropout inside attention. Raises ConfigurationError for want of a seed."""
        rate = self.config.attention_dropout
        if not (self.training and rate):
            return [{}] * len(self.layers)
        if seed is None:
            raise ConfigurationError(
                f"a model with attention_dropout {rate} is trained with forward(dropout_seed=...), another whole number"
                " for each step: give one, set attention_dropout to 0, or call model.eval() for anything but training"
            )
        if not isinstance(seed, int) or not 0 <= seed < _LAYER:
            raise ConfigurationError(f"dropout_seed must be a whole number in [0, 2^48), got {shown(seed)}")
        attends = [isinstance(cast(Any, block).mixer, SparseAttention) for block in self.layers]
        return [
            {"dropout": Dropout(rate, layer_seed(seed, layer))} if has_pairs else {}
            for layer, has_pairs in enumerate(attends, self.first_layer)
        ]

    def find_documents(
        self,
        position_ids: torch.Tensor | None,
        cu_seqlens: torch.Tensor | Sequence[int] | None,
        attention_mask: torch.Tensor | None,
        tokens: torch.Tensor,
        cache: Cache | None = None,
    ) -> PackedDocuments | None:
        """The documents packed into the rows of tokens [B, N, ...], by the arguments of `forward`.

        None where each row is one sequence. Raises ConfigurationError where documents cannot be kept apart.
        """
        if position_ids is None and cu_seqlens is None:
            return None
        if cache is not None:
            raise ConfigurationError(
                "a cache continues one sequence in each row and counts its tokens: leave out position_ids and"
                " cu_seqlens"
            )
        batch, new = tokens.shape[:2]
        real = None if attention_mask is None else real_tokens(attention_mask, batch, 0, new)
        found = find_documents(position_ids, cu_seqlens, real, tokens)
        reason = None if found is None else self._cannot_pack()
        if reason:
            raise ConfigurationError(f"{reason}, so documents cannot be packed into rows: give each document a row")
        return found

    def _cannot_pack(self) -> str | None:
        """Why documents of one row would see each other; None if they do not."""
        if self.global_tokens is not None:
            return f"this model puts {self.config.global_tokens} global tokens before a row, not before a document"
        if self.config.global_projections is not None:
            return "global_projections read a whole row"
        if not all(isinstance(cast(Any, block).mixer, SparseAttention) for block in self.layers):
            return "fourier() reads a whole row"
        return None

    def _find_cache(self, past_key_values: Cache | None, use_cache: bool) -> Cache | None:
        """The cache to extend, whose layers are PatternCacheLayers, or None."""
        if past_key_values is None and not use_cache:
            return None
        if self.reads_padding or self.global_tokens is not None:
            self.config.require_causal()
        if self.training and any(block.gradient_checkpointing for block in self.layers):
            raise ConfigurationError("gradient checkpointing runs every block twice and cannot be used with a cache")
        if past_key_values is None:
            return PatternCache(self.config)
        empty = past_key_values.get_seq_length() == 0 and not past_key_values.offloading
        if empty and type(past_key_values) is DynamicCache:
            # The caller may hold on to this object instead of the one we return, so it is filled in place.
            past_key_values.layers = PatternCache(self.config).layers
            past_key_values.layer_class_to_replicate = None
        if type(past_key_values) is PatternCache and not past_key_values.layers:
            for pattern in self.config.layer_patterns():
                past_key_values.add_layer(pattern)
        own_layers = [layer for layer in past_key_values.layers if isinstance(layer, PatternCacheLayer)]
        if len(own_layers) != len(self.layers):
            raise ConfigurationError(
                f"past_key_values is a {type(past_key_values).__name__} that does not know which keys the patterns of"
                " this model still need; pass a PatternCache(model.config), or nothing"
            )
        return past_key_values

    def _check_length(self, columns: int, positions: torch.Tensor) -> None:
        """Raises ConfigurationError when a real token stands beyond the table of positions."""
        limit = self.config.max_position_embeddings
        if self.config.positions_end and columns > limit:
            self._check_end(int(positions.max()) + 1)

    def _check_end(self, longest: int) -> None:
        """Raises ConfigurationError for a row of more real tokens than the table of positions has."""
        if self.config.positions_end and longest > self.config.max_position_embeddings:
            raise ConfigurationError(too_long(longest, self.config))


def layer_seed(seed: int, layer: int) -> int:
    """The seed of dropout of a layer, by its number."""
    return seed + layer * _LAYER


def too_long(tokens: int, config: AsterismConfig) -> str:
    """Why so many tokens cannot be read."""
    return (
        f"{tokens} tokens are more than the {config.max_position_embeddings} positions of this model"
        f" (max_position_embeddings, position_type {config.position_type!r});"
        " shorten the input or what is to be generated"
    )
