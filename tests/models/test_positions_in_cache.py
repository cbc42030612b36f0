"""Rotary positions within the cache (`positions="cache"`), against their definition in Xiao 2023, section 3.2."""

import copy
import math

import pytest
import torch
from followed_models import CAUSAL, GROUPED, SIZES, VOCABULARY
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from asterism.errors import ConfigurationError
from asterism.models import use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.patterns import causal, parse

FIRST, WINDOW = 3, 6
SINKS = f"sinks(first={FIRST}, window={WINDOW})"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
ONE_ROPE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES = {
    "llama": CAUSAL["llama"],
    "qwen2": CAUSAL["qwen2"],
    "qwen3": CAUSAL["qwen3"],
    "mistral": CAUSAL["mistral"],
    "yarn": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED, rope_parameters=YARN)),
    "half of a head": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, **ONE_ROPE, rotary_pct=0.5)),
    "pairs": lambda: CohereForCausalLM(CohereConfig(**GROUPED, use_qk_norm=False)),
}


def phi():  # which rotates a part of each head by itself
    return PhiForCausalLM(PhiConfig(**SIZES))


def model_of(family, pattern=SINKS, **options):
    torch.manual_seed(0)
    model = FAMILIES[family]().double().eval()
    for weights in model.parameters():
        if weights.ndim == 2:
            weights.data *= 4  # scores that differ
    return use_pattern(model, pattern, positions="cache", **options)


def ids_of(tokens, rows=2, seed=0):
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


# --- the definition ---------------------------------------------------------------------------------------------------


def turned(x, places, frequencies, in_pairs):
    """x [.., n, d] rotated by places [n]; numbers beyond those that the frequencies cover stay."""
    angles = places[:, None].double() * frequencies
    cos, sin = angles.cos(), angles.sin()
    size, whole = 2 * len(frequencies), x.clone()
    one, other = (slice(0, size, 2), slice(1, size, 2)) if in_pairs else (slice(0, size // 2), slice(size // 2, size))
    whole[..., one] = x[..., one] * cos - x[..., other] * sin
    whole[..., other] = x[..., other] * cos + x[..., one] * sin
    return whole


def by_definition(rule, frequencies, in_pairs):
    """Attention in which keys are rotated by their rank among those which a query reads, query by query."""

    def attention(module, query, key, value, mask, scaling=None, **others):
        tokens, group = query.shape[2], query.shape[1] // key.shape[1]
        places = torch.arange(tokens)
        bare_q, bare_k = (turned(x, -places, frequencies, in_pairs) for x in (query, key))
        bare_k, value = (x.repeat_interleave(group, dim=1) for x in (bare_k, value))
        reads = torch.from_numpy(rule.dense(tokens, tokens))[0]
        rows = []
        for t in range(tokens):
            read = reads[t].nonzero()[:, 0]
            ranks = torch.arange(len(read))
            keys = turned(bare_k[:, :, read], ranks, frequencies, in_pairs)
            own = turned(bare_q[:, :, t : t + 1], ranks[-1:], frequencies, in_pairs)
            weights = (own @ keys.transpose(2, 3) * scaling).softmax(dim=-1)
            rows.append(weights @ value[:, :, read])
        return torch.cat(rows, dim=2).transpose(1, 2).contiguous(), None

    return attention


def expected(model, ids, pattern=SINKS):
    """The logits of the same weights by the definition."""
    rotary = next(part for name, part in model.named_modules() if name.endswith("rotary_emb"))
    plain = use_pattern(copy.deepcopy(model), None)
    in_pairs = "Cohere" in type(model).__name__
    name = "by_definition"
    AttentionInterface.register(name, by_definition(parse(pattern), rotary.inv_freq.double(), in_pairs))
    AttentionMaskInterface.register(name, lambda *a, **k: None)
    plain.set_attn_implementation(name)
    return plain(ids, use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_is_the_definition(family):
    """Angles are float32 in transformers: so are the rotations that add up."""
    model, ids = model_of(family), ids_of(40)
    with torch.no_grad():
        found, wanted = model(ids, use_cache=False).logits, expected(model, ids)
        original = use_pattern(copy.deepcopy(model), SINKS)(ids, use_cache=False).logits
    error = (found - wanted).abs().max()
    assert error < 1e-4
    assert (original[:, : FIRST + WINDOW] - wanted[:, : FIRST + WINDOW]).abs().max() < 1e-4
    assert (original[:, FIRST + WINDOW :] - wanted[:, FIRST + WINDOW :]).abs().max() > 500 * error


def test_gradients_are_those_of_the_definition():
    model, ids = model_of("llama"), ids_of(30)
    other = copy.deepcopy(model)
    model(ids, use_cache=False).logits.square().mean().backward()
    expected_of(other, ids).square().mean().backward()
    grads = {name: p.grad for name, p in other.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name], rtol=1e-3, atol=1e-5)


def expected_of(model, ids):
    """As `expected`, of the model itself."""
    rotary = model.model.rotary_emb
    AttentionInterface.register("by_definition", by_definition(parse(SINKS), rotary.inv_freq.double(), False))
    AttentionMaskInterface.register("by_definition", lambda *a, **k: None)
    use_pattern(model, None).set_attn_implementation("by_definition")
    return model(ids, use_cache=False).logits


# --- caches, padding, documents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", ([40], [1] * 40, [7, 1, 1, 12, 19], [30] + [1] * 10))
def test_a_cache_gives_the_same(chunks):
    model, ids = model_of("qwen3"), ids_of(40)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache, parts = PatternCache(), []
        for part in ids.split(chunks, dim=1):
            parts.append(model(part, past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ("left", "right"))
def test_padding_changes_no_token(side):
    model, ids = model_of("llama"), ids_of(36)
    padded, mask = torch.zeros(2, 41, dtype=torch.int64), torch.zeros(2, 41, dtype=torch.int64)
    own = [slice(5, 41), slice(5, 41)] if side == "left" else [slice(0, 36), slice(0, 30)]
    for row, place in enumerate(own):
        size = place.stop - place.start
        padded[row, place], mask[row, place] = ids[row, :size], 1
    with torch.no_grad():
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)
        found = model(padded, attention_mask=mask, position_ids=places, use_cache=False).logits
        for row, place in enumerate(own):
            alone = model(ids[row : row + 1, : place.stop - place.start], use_cache=False).logits[0]
            torch.testing.assert_close(found[row, place], alone, rtol=0, atol=1e-5)


def test_padding_between_tokens_is_refused():
    model, ids, mask = model_of("llama"), ids_of(30), torch.ones(2, 30, dtype=torch.int64)
    mask[1, 12:15] = 0
    with pytest.raises(ConfigurationError, match="between the tokens"):
        model(ids, attention_mask=mask, use_cache=False)


def test_generates_the_same_with_and_without_a_cache():
    model, ids = model_of("llama"), ids_of(9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    options = dict(max_new_tokens=25, do_sample=False, attention_mask=mask)
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


def test_beams_and_what_is_taken_back():
    model, ids = model_of("llama"), ids_of(20, rows=1)
    beams = model.generate(ids, max_new_tokens=12, num_beams=3, do_sample=False)
    assert torch.equal(beams, model.generate(ids, max_new_tokens=12, num_beams=3, do_sample=False, use_cache=False))
    with torch.no_grad():
        cache = PatternCache()
        model(ids, past_key_values=cache)
        cache.crop(-5)
        again = model(ids[:, 15:], past_key_values=cache).logits
        torch.testing.assert_close(again, model(ids, use_cache=False).logits[:, 15:], rtol=0, atol=1e-5)


def test_documents_count_for_themselves():
    model, ids = model_of("llama"), ids_of(40, rows=1)
    places = torch.cat([torch.arange(14), torch.arange(26)])[None]
    with torch.no_grad():
        found = model(ids, position_ids=places, use_cache=False).logits
        apart = [model(part, use_cache=False).logits for part in ids.split([14, 26], dim=1)]
    torch.testing.assert_close(found, torch.cat(apart, dim=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", ("window(left=5)", causal()))
def test_other_layers_are_as_before(pattern):
    model, ids = model_of("llama", pattern), ids_of(30)
    with torch.no_grad():
        assert torch.equal(
            model(ids, use_cache=False).logits, use_pattern(copy.deepcopy(model), pattern)(ids, use_cache=False).logits
        )


def test_half_precision_stays_close():
    model, ids = model_of("llama").bfloat16(), ids_of(60)
    with torch.no_grad():
        near, exact = model(ids, use_cache=False).logits, copy.deepcopy(model).double()(ids, use_cache=False).logits
        other = use_pattern(copy.deepcopy(model), SINKS)(ids, use_cache=False).logits
        plain = use_pattern(copy.deepcopy(model).double(), SINKS)(ids, use_cache=False).logits
    assert (near - exact).abs().max() < 2 * (other - plain).abs().max()
    assert math.isfinite(near.sum())


@pytest.mark.slow
def test_one_graph_serves_all_lengths():
    torch._dynamo.reset()
    model = model_of("llama").float()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    with torch.no_grad():
        for tokens in (20, 33, 47):
            ids = ids_of(tokens)
            found = compiled(ids, use_cache=False).logits
            torch.testing.assert_close(found, model(ids, use_cache=False).logits, rtol=0, atol=1e-3)
        cache, other = PatternCache(max_tokens=60), PatternCache(max_tokens=60)
        model(ids, past_key_values=cache), model(ids, past_key_values=other)
        for token in ids_of(4, seed=1).split(1, dim=1):
            found = compiled(token, past_key_values=cache).logits
            torch.testing.assert_close(found, model(token, past_key_values=other).logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize("positions", ("original", "cache"))
def test_a_text_beyond_the_length_of_training_is_told_once(positions, caplog):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**GROUPED | {"max_position_embeddings": 31})).eval()
    use_pattern(model, SINKS, positions=positions)
    with torch.no_grad():
        model(ids_of(31), use_cache=False)
        assert not caplog.records
        out = model(ids_of(30))
        model(ids_of(2), past_key_values=out.past_key_values)
        model(ids_of(40), use_cache=False)
    assert [record.getMessage()[:42] for record in caplog.records] == (
        ["the text is longer than the 31 tokens of m"] if positions == "original" else []
    )


# --- kept and refused -------------------------------------------------------------------------------------------------


def test_is_saved_with_the_pattern(tmp_path):
    model, ids = model_of("llama"), ids_of(40)
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    with torch.no_grad():
        wanted = model(ids, use_cache=False).logits
        assert torch.equal(loaded(ids, use_cache=False).logits, wanted)
        assert torch.equal(use_pattern(loaded)(ids, use_cache=False).logits, wanted)
        assert not torch.equal(use_pattern(loaded, SINKS)(ids, use_cache=False).logits, wanted)
    assert not hasattr(use_pattern(loaded, SINKS, positions="original").config, "asterism_positions")
    assert not hasattr(use_pattern(model, None).config, "asterism_positions")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_is_saved_with_an_adapter(tmp_path):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(model_of("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path)
    torch.manual_seed(0)
    base = CAUSAL["llama"]().double().eval()
    assert peft.PeftModel.from_pretrained(base, tmp_path).get_base_model().config.asterism_positions == "cache"
    with pytest.raises(ConfigurationError, match="positions"):
        peft.PeftModel.from_pretrained(use_pattern(CAUSAL["llama"](), SINKS), tmp_path)


@pytest.mark.parametrize(
    ("build", "pattern", "options", "words"),
    [
        (CAUSAL["llama"], "strided(stride=4)", {}, "layer 0"),
        (CAUSAL["llama"], SINKS, {"positions": "text"}, "original"),
        (CAUSAL["gpt2"], SINKS, {}, "rotate"),
        (CAUSAL["mistral, own window"], SINKS, {"native_window": "intersect"}, "native_window"),
        (
            lambda: LlamaForCausalLM(
                LlamaConfig(**GROUPED, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
            ),
            SINKS,
            {},
            "dynamic",
        ),
        (phi, SINKS, {}, "changes them afterwards"),
        (lambda: HunYuanDenseV1ForCausalLM(HunYuanDenseV1Config(**GROUPED, head_dim=8)), SINKS, {}, "in every layer"),
        (CAUSAL["gemma3"], SINKS, {"native_window": "replace"}, "several kinds"),
        (lambda: SmolLM3ForCausalLM(SmolLM3Config(**GROUPED)), SINKS, {}, "in every layer"),
        (
            lambda: Cohere2ForCausalLM(Cohere2Config(**GROUPED, sliding_window=8)),
            SINKS,
            {"native_window": "replace"},
            "in every layer",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(build, pattern, options, words):
    torch.manual_seed(0)
    model = build()
    before = copy.deepcopy(vars(model.config))
    with pytest.raises(ConfigurationError, match=words) as refused:
        use_pattern(model, pattern, **({"positions": "cache"} | options))
    assert "\n" not in str(refused.value)
    assert vars(model.config).get("asterism_pattern") == before.get("asterism_pattern")


def test_a_model_without_numbers_is_tried_when_it_has_them():
    with torch.device("meta"):
        llama = use_pattern(FAMILIES["llama"](), SINKS, positions="cache")
    llama.to_empty(device="cpu")
    torch.manual_seed(0)
    filled = FAMILIES["llama"]().eval()
    llama.load_state_dict(filled.state_dict())
    llama.model.rotary_emb = copy.deepcopy(filled.model.rotary_emb)  # which no state has
    with torch.no_grad():
        wanted = use_pattern(filled, SINKS, positions="cache")(ids_of(30), use_cache=False).logits
        assert torch.equal(llama.eval()(ids_of(30), use_cache=False).logits, wanted)


def test_a_configuration_changed_by_hand_is_refused():
    for before, after in (("original", "cache"), ("cache", "original")):
        model = use_pattern(FAMILIES["llama"](), SINKS, positions=before)
        model.config.asterism_positions = after
        with pytest.raises(ConfigurationError, match="by hand"):
            model(ids_of(30), use_cache=False)
        use_pattern(model)(ids_of(30), use_cache=False)


def test_replaces_a_window_of_the_model():
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=9)).double().eval()
    use_pattern(model, SINKS, native_window="replace", positions="cache")
    ids = ids_of(30)
    with torch.no_grad():
        found = model(ids, use_cache=False).logits
        model.config.sliding_window = None
        torch.testing.assert_close(found, expected(model, ids), rtol=0, atol=1e-5)
