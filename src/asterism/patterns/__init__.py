"""Patterns, which say who may attend to whom: immutable values, their algebra, their text, and published patterns."""

from asterism.patterns.across import across
from asterism.patterns.causality import (
    require_causal,
    require_cross_attention,
    require_prefix_stable,
    require_self_attention,
)
from asterism.patterns.documents import documents
from asterism.patterns.explicit import explicit
from asterism.patterns.grid import grid
from asterism.patterns.part import part
from asterism.patterns.pattern import Named, Pattern, Verdict
from asterism.patterns.primitives import (
    blocks,
    causal,
    columns,
    dense,
    global_keys,
    global_queries,
    global_tokens,
    per_head,
    shifted,
    stride,
    window,
)
from asterism.patterns.published import (
    bigbird,
    bigbird_causal,
    bigbird_etc,
    fixed,
    longformer,
    sinks,
    star,
    star_transformer,
    strided,
    yun_fixed,
    yun_random,
    yun_star,
    yun_strided,
    yun_window,
)
from asterism.patterns.random_blocks import random_blocks
from asterism.patterns.schedule import Fourier, Linear, Mixer, Schedule, Transform, interleave, merge, split_heads
from asterism.patterns.text import as_schedule, in_full, layer_mixers, mixer_counts, parse, parse_schedule
from asterism.patterns.tree import parents_in_row, tree

__all__ = [
    "Fourier",
    "Linear",
    "Mixer",
    "Named",
    "Pattern",
    "Schedule",
    "Transform",
    "Verdict",
    "across",
    "as_schedule",
    "bigbird",
    "bigbird_causal",
    "bigbird_etc",
    "blocks",
    "causal",
    "columns",
    "dense",
    "documents",
    "explicit",
    "fixed",
    "global_keys",
    "global_queries",
    "global_tokens",
    "grid",
    "in_full",
    "interleave",
    "layer_mixers",
    "mixer_counts",
    "longformer",
    "merge",
    "parents_in_row",
    "parse",
    "parse_schedule",
    "part",
    "per_head",
    "random_blocks",
    "require_causal",
    "require_cross_attention",
    "require_prefix_stable",
    "require_self_attention",
    "shifted",
    "sinks",
    "split_heads",
    "star",
    "star_transformer",
    "stride",
    "strided",
    "tree",
    "window",
    "yun_fixed",
    "yun_random",
    "yun_star",
    "yun_strided",
    "yun_window",
]
