"""The cache forgets exactly what the pattern can no longer read, and forgetting changes no output."""

import numpy as np
import pytest
import torch
from small_models import CAUSAL_MIXERS, random_tokens, small_config, small_model
from transformers import DynamicCache, StaticCache

from asterism import patterns
from asterism.compiler import last_reader
from asterism.errors import ConfigurationError, PatternError
from asterism.layers import Rotary, SparseAttention
from asterism.models.cache import PatternCache, PatternCacheLayer

TOKENS = 60


def kept(layer: PatternCacheLayer, row: int = 0) -> list[int]:
    """The positions that a row still holds."""
    return sorted(layer.positions[row][layer.positions[row] >= 0].tolist())


def feed(layer: PatternCacheLayer, positions: torch.Tensor) -> None:
    """Extend by keys and values that carry their position, to be recognised later."""
    keys = positions[:, None, :, None].expand(-1, 2, -1, 3).double()
    layer.extend(keys, keys[..., :1], positions)


def readable_later(pattern: patterns.Pattern, seen: int, horizon: int = 200) -> list[int]:
    """By brute force: keys below `seen` that a query in [seen, horizon) may read."""
    later = pattern.dense(horizon)[:, seen:, :seen]
    return np.flatnonzero(later.any(axis=(0, 1))).tolist()


@pytest.mark.parametrize("chunk", [1, 7, TOKENS])
@pytest.mark.parametrize(
    "text",
    [
        "causal()",
        "window(left=5)",
        "window(left=3, dilation=2)",
        "sinks(first=2, window=6)",
        "strided(stride=6)",
        "fixed(stride=8, summary=2)",
        "fixed(stride=8, summary=2, heads=4)",
        "star() & causal()",
        "split_heads(window(left=2), sinks(first=1, window=9), heads=4)",
    ],
)
def test_after_every_update_exactly_the_readable_keys_are_kept(text: str, chunk: int) -> None:
    pattern = patterns.parse(text)
    layer = PatternCacheLayer(pattern)
    for start in range(0, TOKENS, chunk):
        feed(layer, torch.arange(start, min(start + chunk, TOKENS))[None])
        seen = layer.get_seq_length()
        assert kept(layer) == readable_later(pattern, seen)
        assert layer.keys.shape[2] == layer.values.shape[2] == len(kept(layer))
        assert layer.keys[0, 0, :, 0].tolist() == layer.values[0, 1, :, 0].tolist() == layer.positions[0].tolist()


@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_no_dead_key_is_kept_and_no_living_one_lost(text: str) -> None:
    for pattern in patterns.parse_schedule(text).patterns:
        layer = PatternCacheLayer(pattern)
        for start in range(0, TOKENS, 5):
            feed(layer, torch.arange(start, start + 5)[None])
            assert (last_reader(pattern, kept(layer)) >= layer.get_seq_length()).all()
            assert set(readable_later(pattern, layer.get_seq_length())) <= set(kept(layer))


def test_number_of_keys_kept() -> None:
    """window: constant; fixed: a block and the summary cells; strided: everything."""
    model = small_model(["window(left=9)", "fixed(stride=8, summary=2)", "strided(stride=6)"])
    tokens, cache = random_tokens(2, 64), PatternCache(model.config)
    counts = []
    for column in range(64):
        model(tokens[:, column : column + 1], past_key_values=cache)
        counts.append([layer.keys.shape[2] for layer in cache.layers])
    window, fixed, strided = (list(column) for column in zip(*counts, strict=True))
    # The next query reads 9 keys and itself.
    assert window == [min(seen, 9) for seen in range(1, 65)]
    assert all(count <= 8 + 2 * (seen // 8) for seen, count in enumerate(fixed, start=1))
    assert fixed[-1] == 16
    assert strided == list(range(1, 65))


def test_rows_forget_by_their_own_positions() -> None:
    layer = PatternCacheLayer(patterns.fixed(stride=8, summary=2))
    natural = torch.arange(11)
    feed(layer, torch.stack([natural, torch.where(natural < 5, natural, -1)]))
    assert layer.lengths.tolist() == [11, 5]
    assert [kept(layer, row) for row in range(2)] == [[6, 7, 8, 9, 10], [0, 1, 2, 3, 4]]
    feed(layer, torch.tensor([[11], [5]]))
    assert [kept(layer, row) for row in range(2)] == [[6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]]
    assert layer.get_seq_length() == 12
    feed(layer, torch.tensor([[-1, -1, -1], [6, 7, 8]]))
    assert layer.lengths.tolist() == [12, 9]
    assert [kept(layer, row) for row in range(2)] == [[6, 7, 8, 9, 10, 11], [6, 7, 8]]
    assert layer.keys.shape[2] == 6


def filled(rows: int = 3) -> PatternCache:
    """Rows of different lengths, each with its own number as value."""
    cache = PatternCache(small_config("window(left=4)", num_hidden_layers=1))
    positions = torch.arange(6)[None].repeat(rows, 1)
    positions[positions > 5 - torch.arange(rows)[:, None]] = -1
    own = torch.arange(rows).double()[:, None, None, None].expand(rows, 2, 6, 1)
    cache.layers[0].extend(own.expand(-1, -1, -1, 3), own, positions)
    return cache


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ],
)
def test_rows_travel_with_their_positions(change, rows: list[int]) -> None:
    before, cache = filled().layers[0], filled()
    change(cache)
    after = cache.layers[0]
    assert after.keys[:, 0, 0, 0].tolist() == rows and after.values[:, 1, 0, 0].tolist() == rows
    assert torch.equal(after.positions, before.positions[rows])
    assert torch.equal(after.last_readers, before.last_readers[rows])
    assert after.lengths.tolist() == [6 - row for row in rows]
    assert after.get_seq_length() == 6


def test_reset_forgets_everything() -> None:
    cache = filled(rows=3)
    cache.reset()
    assert cache.get_seq_length() == 0
    feed(cache.layers[0], torch.arange(2)[None])
    assert cache.layers[0].lengths.tolist() == [2]
    empty = PatternCache(small_config())
    for change in (empty.reset, lambda: empty.batch_repeat_interleave(2), lambda: empty.reorder_cache(torch.arange(2))):
        change()
    assert empty.get_seq_length() == 0


def test_what_transformers_asks_of_a_cache() -> None:
    cache = filled()
    assert cache.get_seq_length() == 6
    assert cache.get_mask_sizes(2, 0) == (8, 0)
    assert cache.get_max_length() == cache.layers[0].get_max_length() == -1
    assert cache.get_max_cache_shape() == cache.layers[0].get_max_cache_shape() == -1
    assert not cache.is_compileable and not cache.is_croppable and cache.is_sliding == [False]
    assert len(cache) == 1 and cache.is_initialized


def test_refusals() -> None:
    cache = filled()
    keys = torch.zeros(3, 2, 1, 3)
    with pytest.raises(ConfigurationError, match="a PatternCache cannot be cropped, because the keys that its last"):
        cache.crop(-2)
    with pytest.raises(ConfigurationError, match="a PatternCache keeps keys together with their positions"):
        cache.update(keys, keys, 0)
    with pytest.raises(PatternError, match=r"bigbird\(block=4\) cannot be used by a causal model"):
        PatternCacheLayer(patterns.bigbird(block=4))
    layer = SparseAttention(32, 4, "window(left=3)")
    with pytest.raises(ConfigurationError) as caught:
        layer(torch.zeros(1, 2, 32), cache=cache.layers[0])
    assert str(caught.value) == (
        "the cache forgets by the pattern window(left=4), but the layer reads by window(left=3)"
    )
    layer = SparseAttention(32, 4, "window(left=4)")
    with pytest.raises(ConfigurationError, match="key_mask and segments cannot be used together with a cache"):
        layer(torch.zeros(1, 2, 32), cache=cache.layers[0], key_mask=torch.ones(1, 2, dtype=torch.bool))


def test_a_layer_alone_continues_after_what_its_cache_has_seen() -> None:
    layer = SparseAttention(32, 4, "fixed(stride=8, summary=2)", rotary=Rotary()).double()
    hidden = torch.randn(2, 30, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cache = PatternCacheLayer(layer.pattern)
    parts = [layer(part, cache=cache) for part in hidden.split([11, 1, 7, 11], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(hidden), atol=1e-12, rtol=0)


# --- the cache of a model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 19])
@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_logits_with_cache_equal_logits_without(text: str, first: int) -> None:
    model, tokens = small_model(text), random_tokens(2, 48)
    with torch.no_grad():
        expected = model(tokens).logits
        out = model(tokens[:, :first], use_cache=True)
        logits = [out.logits]
        # One token at a time, then a chunk, then one at a time again.
        for start, stop in [*((i, i + 1) for i in range(first, 26)), (26, 37), *((i, i + 1) for i in range(37, 48))]:
            out = model(tokens[:, start:stop], past_key_values=out.past_key_values)
            logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"position_type": "rotary"},
        {"position_type": "factorised", "position_shape": [8, 8]},
        {"num_key_value_heads": 2, "query_key_dim": 16},
        {"implementation": "eager"},
        {"implementation": "dense"},
    ],
)
def test_logits_with_cache_equal_logits_without_for_other_models(fields: dict) -> None:
    model, tokens = small_model(**fields), random_tokens(2, 30)
    cache = PatternCache(model.config)
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in tokens.split([9, *[1] * 21], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens).logits, atol=1e-11, rtol=0)


def test_an_empty_dynamic_cache_is_filled_in_place() -> None:
    model, tokens = small_model(), random_tokens(1, 20)
    for cache in (DynamicCache(), DynamicCache(config=model.config)):
        with torch.no_grad():
            model(tokens[:, :12], past_key_values=cache)
            last = model(tokens[:, 12:], past_key_values=cache).logits
            torch.testing.assert_close(last, model(tokens).logits[:, 12:], atol=1e-11, rtol=0)
        assert all(isinstance(layer, PatternCacheLayer) for layer in cache.layers)


def test_caches_that_do_not_know_the_patterns_are_refused() -> None:
    model, tokens = small_model(), random_tokens(1, 3)
    used = DynamicCache()
    used.update(torch.zeros(1, 4, 3, 8), torch.zeros(1, 4, 3, 8), 0)
    static, offloaded = StaticCache(config=model.config, max_cache_len=8), DynamicCache(offloading=True)
    deeper = PatternCache(small_config(num_hidden_layers=4))
    for cache in (used, static, offloaded, deeper):
        with pytest.raises(ConfigurationError, match=f"past_key_values is a {type(cache).__name__} that does not know"):
            model(tokens, past_key_values=cache)


def test_no_cache_is_made_unless_asked_for() -> None:
    model = small_model()
    assert model(random_tokens(1, 5)).past_key_values is None
    assert isinstance(model(random_tokens(1, 5), use_cache=True).past_key_values, PatternCache)
