"""The backbone of every Asterism model: embeddings, blocks whose mixers the configuration names, and a last norm.

With causal patterns it is the decoder of Child 2019, with others an encoder in the manner of BERT, BigBird, Longformer
or FNet; the heads stand in files of their own. The usual methods of transformers work: `save_pretrained`,
`from_pretrained`, gradient checkpointing, the Trainer.

Positions count the real tokens of each row, and the cache stores how many each row has seen; `position_ids` only mark
the borders of packed documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError, shown
from asterism.kernels import Dropout
from asterism.layers import BucketedPositions, PersistentAttention
from asterism.layers.cross import SourceKeys
from asterism.layers.rows import Rows, find_rows, with_all_ranks
from asterism.memory import least_model_memory, shortage
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.blocks import make_block, make_distances, make_norm, make_positions
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.cache import PatternCache, is_plain
from asterism.models.cache.layer import PatternCacheLayer
from asterism.models.cache.naming import one_cache, with_cache
from asterism.models.cache.sharded import ShardedCache

_LAYER = 2**48
"""Offset between the dropout seeds of consecutive layers."""


class EncodedSource(NamedTuple):
    """What the blocks of a decoder read.

    states    [B, S, hidden_size]; None where a cache has the keys of all layers
    rows      where its tokens stand; None where all are real
    kept      of each layer, where a cache keeps its keys; None without a cache
    dropouts  of each layer, of the pairs that are read
    """

    states: torch.Tensor | None
    rows: Rows | None
    kept: Sequence[SourceKeys] | None
    dropouts: Sequence[Dropout | None]

    def of(self, layer: int) -> dict[str, Any]:
        """The arguments of a layer's cross attention."""
        kept = None if self.kept is None else self.kept[layer]
        return {"source_rows": self.rows, "kept": kept, "dropout": self.dropouts[layer]}


@dataclass
class BackboneOutput(BaseModelOutputWithPast):
    """What a head reads: as transformers has it, and where the tokens stand, which callers of the backbone alone are
    not given."""

    last_hidden_state: torch.Tensor = None  # type: ignore[assignment]  # transformers wants a default of every field
    rows: Rows = None  # type: ignore[assignment]


class AsterismModel(AsterismPreTrainedModel):
    """Embeddings of tokens, types and positions, blocks, and the last norm of pre-norm blocks.

    Raises ConfigurationError or PatternError for a configuration that cannot work, or that has a decoder.
    """

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        config.require_one_stack(type(self).__name__)
        config.check()
        layers = config.num_hidden_layers
        if reason := shortage(least_model_memory({"num_layers": layers}), f"a model of {layers:,} layers"):
            raise ConfigurationError("field-refused", reason)
        width = config.embedding_width
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.embed_types = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.positions = make_positions(config)
        self.mixers = config.layer_mixers()
        """What mixes the tokens of each layer."""
        reads_future = not all(mixer.is_causal for mixer in self.mixers)
        self.relative = make_distances(config, both_sides=reads_future or self.role == "encoder")
        self.global_tokens = nn.Embedding(config.global_tokens, width) if config.global_tokens else None
        has_norm, has_projection = config.embedding_norm, config.embedding_size is not None
        self.embedding_norm = make_norm(config, width) if has_norm else nn.Identity()
        self.embedding_projection = nn.Linear(width, config.hidden_size) if has_projection else nn.Identity()
        drops = has_norm or self.role != "alone"  # both stacks of an encoder-decoder do, as in Vaswani 2017
        self.embedding_dropout = nn.Dropout(config.dropout if drops else 0.0)
        cross = config.cross_patterns() if self.role == "decoder" else [None] * layers
        self.layers = nn.ModuleList(make_block(config, *each) for each in zip(self.mixers, cross, strict=True))
        self.norm = make_norm(config, config.hidden_size) if config.block == "pre_norm" else nn.Identity()
        self.by_length = any(mixer.depends_on_length for mixer in self.mixers)
        """Whether some pattern must be laid over each row's own length."""
        self.reads_padding = reads_future or config.global_projections is not None
        """Whether some layer would read the padding behind the real tokens, were it not masked."""
        self.post_init()

    @can_return_tuple
    @with_all_ranks
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        *,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | Sequence[int] | None = None,
        parents: torch.Tensor | Sequence[int] | None = None,
        output_attentions: bool | None = None,
        with_rows: bool = False,
        cache: Cache | None = None,
    ) -> BackboneOutput:
        """Hidden states [B, N, hidden_size] of N new tokens.

        input_ids        int64 [B, N]; or instead inputs_embeds [B, N, embedding_size or hidden_size], which are used
                         unchanged: embedding_scale applies only to rows of the table
        attention_mask   [B, N] or, when the cache has seen S columns, [B, S + N]: 1 for tokens, 0 for padding, on any
                         side. A padded column returns the states of the last token before it, or 0 without one.
        token_type_ids   int64 [B, N], by default 0; a model without types takes only 0
        past_key_values  a PatternCache, or an empty DynamicCache, which is given the layers of one; it is extended
        use_cache        make a PatternCache when none is given, and return it
        dropout_seed     in [0, 2^48), required in training with attention_dropout: a new one for each step
        position_ids     int64 [B or 1, N]: 0, 1, 2, ..., restarting at 0 with each document packed into the row; or
        cu_seqlens       [documents + 1]: borders of documents, as in `attend`, equal in every row. Each document is
                         read as if it were alone. Neither can be used with padding or a cache.
        parents          whole numbers [N] or [B, N]: each token is read behind its parent, the token in this column, as
                         the path from its root were alone; -1 for a root. With cu_seqlens, borders of trees, they count
                         from the first token of their tree. A causal model only, without padding or a cache, and with
                         positions that are added or rotary.
        with_rows        whether the output includes the Rows, for a head
        cache            another name of past_key_values, that of transformers since 5.24

        Raises ConfigurationError for more tokens than the model has positions, for a cache of another kind, for a cache
        with patterns that are not causal, and for output_attentions: attention weights are never stored.
        """
        self._refuse_unknown({"output_attentions": output_attentions})
        if self.config.index_dim and self.training and any(block.gradient_checkpointing for block in self.layers):
            raise ConfigurationError(
                "index-with-checkpointing",
                f"gradient checkpointing runs every block twice, and would lose what the index branches (index_dim"
                f" {self.config.index_dim}) learn from: switch it off",
            )
        embedded = self._embed(input_ids, inputs_embeds, token_type_ids)
        cache = self._find_cache(one_cache(past_key_values, cache), use_cache)
        dropouts = self._dropouts(dropout_seed)
        rows = self._find_rows(embedded, attention_mask, cache, position_ids, cu_seqlens, parents)
        last, states = self._run(rows, embedded, cache, dropouts, output_hidden_states)
        return BackboneOutput(
            last_hidden_state=last,
            hidden_states=states,
            rows=rows if with_rows else None,  # type: ignore[arg-type]
            **with_cache(cache),
        )

    def _embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, N, embedding_width]: tokens and their types, before positions are known."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigurationError("ids-and-embeds", "give either input_ids or inputs_embeds, not both")
        embedded = inputs_embeds
        if embedded is None:
            embedded = self.embed_tokens(input_ids)
            embedded = embedded if self.config.embedding_scale == 1 else embedded * self.config.embedding_scale
        if self.embed_types is None:
            if token_type_ids is not None and token_type_ids.any():
                raise ConfigurationError(
                    "no-token-types",
                    "token_type_ids has types above 0, but this model has no token types (type_vocab_size 0):"
                    " leave it out",
                )
            return embedded
        types = self.embed_types.weight[0] if token_type_ids is None else self.embed_types(token_type_ids)
        return embedded + types

    def _find_rows(
        self,
        embedded: torch.Tensor,
        attention_mask: torch.Tensor | None,
        cache: Cache | None,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | Sequence[int] | None = None,
        parents: torch.Tensor | Sequence[int] | None = None,
    ) -> Rows:
        """Where embedded tokens [B, N, ...] stand. Raises ConfigurationError for documents that would be read across,
        and for more tokens than there are positions."""
        looks = self.reads_padding or self.by_length or cache is not None
        if parents is not None and not all(pattern.is_causal for pattern in self.config.layer_patterns()):
            raise ConfigurationError(
                "tree-not-causal",
                "parents are given, but this model reads the future, which differs among the sequences that share a"
                " token: give each sequence a row",
            )
        rows = find_rows(embedded, attention_mask, position_ids, cu_seqlens, parents=parents, cache=cache, looks=looks)
        if rows.documents is not None and (reason := self._cannot_pack()):
            raise ConfigurationError(
                "documents-not-packable", f"{reason}, so documents cannot be packed into rows: give each document a row"
            )
        limit = self.config.max_position_embeddings
        if self.config.positions_end and (longest := rows.longest(limit)) > limit:
            raise ConfigurationError("too-long", too_long(longest, self.config))
        return rows

    def _run(
        self,
        rows: Rows,
        embedded: torch.Tensor,
        cache: Cache | ShardedCache | None,
        dropouts: Sequence[Dropout | None],
        output_hidden_states: bool | None = None,
        source: EncodedSource | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None]:
        """The last hidden states of embedded tokens, and those of all layers where they are wanted."""
        embedded = rows.pack(embedded)
        if self.relative is not None:
            embedded = rows.bind(embedded, self.relative.weight)
        if self.positions is not None:
            embedded = embedded + self.positions(rows.positions.clamp(min=0)).to(embedded.dtype)
        told = self.reads_padding or self.by_length
        inner = rows.inside(self.config.global_tokens, told=told, by_length=self.by_length)
        hidden = self._begin(embedded, inner.front)
        caches = [None] * len(self.layers) if cache is None else cache.layers
        distances = self._distances()
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = []
        for layer, block in enumerate(self.layers):
            if wanted:
                states.append(rows.by_column(hidden[:, inner.front :]))
                # The gradient passes through the tensor that a caller holds. Only slots of padding, which no real token
                # reads, change their contents.
                tokens = rows.pack(states[-1])
                hidden = torch.cat([hidden[:, : inner.front], tokens], dim=1) if inner.front else tokens
            # States are no named argument: reentrant checkpointing gives gradients to the others alone.
            reads = () if source is None else (source.states,)
            cross = {} if source is None else {"cross": source.of(layer)}
            terms = distances | {"dropout": dropouts[layer]} if self.mixers[layer].has_pairs else {}
            hidden = block(hidden, *reads, rows=inner, cache=caches[layer], **terms, **cross)
        last = rows.by_column(self.norm(hidden)[:, inner.front :])
        return last, (*states, last) if wanted else None

    def _distances(self) -> dict[str, Any]:
        """What layers of attention are given of the distances of tokens, by the name of their argument."""
        if self.relative is None:
            return {}
        return {"bias" if isinstance(self.relative, BucketedPositions) else "relative": self.relative()}

    def span_penalty(self) -> torch.Tensor | None:
        """The loss of adaptive spans: the sum over the layers of their mean span, times the penalty.

        A scalar in the dtype of the weights; None without adaptive spans.
        """
        if not self.config.adaptive_span:
            return None
        mixers = (cast(PersistentAttention, cast(Any, block).mixer) for block in self.layers)
        spans = torch.stack([mixer.adaptive_span.penalty() for mixer in mixers if mixer.adaptive_span is not None])
        return self.config.adaptive_span_penalty * spans.sum()

    def _begin(self, embedded: torch.Tensor, here: int) -> torch.Tensor:
        """What the first block reads: global tokens in front, norm, and the width of the model.

        `here` says how many of the global tokens are on this device: all, or none.
        """
        if self.global_tokens is not None:
            front = self.global_tokens.weight
            embedded = torch.cat([front[:here].expand(len(embedded), -1, -1), embedded], dim=1)
        hidden: torch.Tensor = self.embedding_dropout(self.embedding_projection(self.embedding_norm(embedded)))
        return hidden

    def _dropouts(self, seed: int | None, first: int = 0) -> list[Dropout | None]:
        """Dropout inside the attention of each layer, if any; seeds are counted from layer number `first` on.

        Raises ConfigurationError for want of a seed.
        """
        rate = self.config.attention_dropout
        if not (self.training and rate):
            return [None] * len(self.layers)
        if seed is None:
            raise ConfigurationError(
                "dropout-seed-missing",
                f"training with attention_dropout {rate} needs forward(dropout_seed=...), a new whole number in each"
                " step: give one, set attention_dropout to 0, or call model.eval()",
            )
        if not isinstance(seed, int) or not 0 <= seed < _LAYER:
            raise ConfigurationError(
                "dropout-seed", f"dropout_seed must be a whole number in [0, 2^48), got {shown(seed)}"
            )
        return [Dropout(rate, seed + layer * _LAYER) for layer in range(first, first + len(self.layers))]

    def _cannot_pack(self) -> str | None:
        """Why documents of one row would see each other; None if they do not."""
        if self.global_tokens is not None:
            return f"this model puts {self.config.global_tokens} global tokens before a row, not before a document"
        if self.config.global_projections is not None:
            return "global_projections read a whole row"
        for mixer in self.mixers:
            if not mixer.has_pairs:
                return f"{mixer} reads a whole row"
        return None

    def _find_cache(self, past_key_values: Cache | None, use_cache: bool) -> Cache | None:
        """The cache to extend, whose layers are PatternCacheLayers, or None."""
        if past_key_values is None and not use_cache:
            return None
        if self.reads_padding or self.global_tokens is not None:
            self.config.require_causal()
        if self.training and any(block.gradient_checkpointing for block in self.layers):
            raise ConfigurationError(
                "checkpointing-with-cache",
                "gradient checkpointing runs every block twice and cannot be used with a cache",
            )
        if past_key_values is None:
            return PatternCache(self.config)
        if is_plain(past_key_values) and past_key_values.get_seq_length() == 0:
            # The caller may hold on to this object instead of the one we return, so it is filled in place.
            past_key_values.layers = PatternCache(self.config).layers
            past_key_values.layer_class_to_replicate = None
        if type(past_key_values) is PatternCache and not past_key_values.layers:
            for pattern in self.config.layer_patterns():
                past_key_values.add_layer(pattern)
        own_layers = [layer for layer in past_key_values.layers if isinstance(layer, PatternCacheLayer)]
        if len(own_layers) != len(self.layers):
            raise ConfigurationError(
                "foreign-cache",
                f"the cache is of type {type(past_key_values).__name__}, which cannot forget by the patterns of"
                " this model; pass a PatternCache(model.config), or nothing",
            )
        return past_key_values


def too_long(tokens: int, config: AsterismConfig) -> str:
    """Why so many tokens cannot be read."""
    return (
        f"{tokens} tokens are more than the {config.max_position_embeddings} positions of this model"
        f" (max_position_embeddings, position_type {config.position_type!r});"
        " shorten the input or what is to be generated"
    )
