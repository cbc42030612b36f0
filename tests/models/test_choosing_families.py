"""Models of transformers whose queries choose blocks by an index branch: equal to transformers, without its mask."""

import copy

import pytest
import torch
from refusals import refusing
from small_checkpoints import draw_weights, undone
from transformers import DynamicCache, StaticCache

from asterism.errors import ConfigurationError
from asterism.kernels.cpu import is_available
from asterism.models import use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.patterns import parse
from asterism.quiet import quiet_transformers

family = pytest.importorskip("transformers.models.minimax_m3_vl.modeling_minimax_m3_vl")
configurations = pytest.importorskip("transformers.models.minimax_m3_vl.configuration_minimax_m3_vl")

SPARSE = "minimax_m3_sparse"
SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 64,
    "dense_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_block_size": 16,
    "index_topk_blocks": 3,
    "layer_types": ["full_attention", SPARSE, SPARSE],
    "rotary_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def small(**changes):
    with quiet_transformers(), undone():
        model = family.MiniMaxM3VLForCausalLM(configurations.MiniMaxM3VLTextConfig(**(SIZES | changes)))
        with torch.no_grad():
            draw_weights(model)
    model.config._experts_implementation = "eager"
    model.set_attn_implementation("sdpa")
    return model.eval()


def tokens(rows: int = 2, length: int = 150) -> torch.Tensor:
    return torch.randint(3, 100, (rows, length), generator=torch.Generator().manual_seed(0))


def logits(model, ids: torch.Tensor, **named) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, use_cache=False, **named).logits


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"index_local_blocks": 2},
        {"index_topk_blocks": 1},
        {"index_topk_blocks": 64},
        {"num_key_value_heads": 1, "index_n_heads": 2},
        {"num_key_value_heads": 4, "index_n_heads": 2},
    ],
)
@pytest.mark.parametrize("length", [1, 16, 17, 150])
def test_it_reads_what_transformers_reads(changes, length):
    model, ids = small(**changes), tokens(length=length)
    expected = logits(model, ids)
    use_pattern(model)
    assert model.config._attn_implementation == "asterism"
    chosen = parse(model.config.asterism_pattern[1])
    assert chosen.chooses
    torch.testing.assert_close(logits(model, ids), expected, atol=2e-4, rtol=1e-4)


def test_the_choice_matters_here():
    """Else the tests above would compare dense attention with itself."""
    ids = tokens()
    few, all_ = small(), small(index_topk_blocks=64)
    assert (logits(few, ids) - logits(all_, ids)).abs().max() > 0.1


def test_gradients_are_those_of_transformers():
    ids = tokens()
    found = {}
    for name in ("sdpa", "asterism"):
        model = small().double()
        if name == "asterism":
            use_pattern(model)
        model(ids, labels=ids, use_cache=False).loss.backward()
        found[name] = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
    assert found["sdpa"].keys() == found["asterism"].keys()
    assert not any("indexer" in key for key in found["sdpa"])
    for key, expected in found["sdpa"].items():
        torch.testing.assert_close(found["asterism"][key], expected, atol=1e-5, rtol=1e-4, msg=key)


@pytest.mark.parametrize("chunks", [(149, 1), (100, *[1] * 50), (1, 15, 16, 17, 101), (64, 86)])
def test_a_cache_changes_nothing(chunks):
    model, ids = use_pattern(small()), tokens()
    expected = logits(model, ids)
    cache, found = None, []
    for part in ids.split(chunks, dim=1):
        with torch.no_grad():
            out = model(part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("how", [{}, {"num_beams": 2}])
def test_it_writes_what_transformers_writes(how):
    model, ids = small(), tokens(rows=1, length=60)
    options = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, **how}
    expected = model.generate(ids, **options)
    assert torch.equal(use_pattern(model).generate(ids, **options), expected)


def test_padding_on_the_right():
    model, ids = small(), tokens()
    mask = torch.ones_like(ids)
    mask[0, 90:] = 0
    expected = logits(model, ids, attention_mask=mask)
    use_pattern(model)
    found = logits(model, ids, attention_mask=mask)
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(found[:1, :90], logits(model, ids[:1, :90]), atol=2e-4, rtol=1e-4)


def test_it_is_saved(tmp_path):
    model, ids = use_pattern(small()), tokens()
    with quiet_transformers():
        model.save_pretrained(tmp_path)
        again = family.MiniMaxM3VLForCausalLM.from_pretrained(tmp_path)
    again.config._experts_implementation = "eager"
    assert again.config.asterism_pattern == model.config.asterism_pattern
    torch.testing.assert_close(logits(again, ids), logits(model, ids))


@pytest.mark.skipif(not is_available(), reason="the CPU kernel is missing")
def test_no_array_of_all_pairs():
    """The mask of transformers has one number for each head and pair; here no tensor is that large."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, given=(), named=None):
            result = function(*given, **(named or {}))
            for one in result if isinstance(result, tuple | list) else (result,):
                if isinstance(one, torch.Tensor):
                    self.most = max(self.most, one.numel())
            return result

    length, found = 1024, {}
    for name in ("sdpa", "asterism"):
        model = small(num_hidden_layers=1, layer_types=[SPARSE], vocab_size=8)
        attention = (use_pattern(model) if name == "asterism" else model).model.layers[0].self_attn
        ids = tokens(1, length) % 8
        blocks = torch.arange(3).expand(1, 2, length, 3)
        attention.indexer.forward = lambda *given, blocks=blocks: blocks  # its scores are transformers' affair
        with Largest() as counted:
            logits(model, ids)
        found[name] = counted.most
    assert found["sdpa"] >= 4 * length**2
    assert found["asterism"] < length**2 // 4


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_patterns_that_would_drop_the_choice():
    for pattern in ("causal()", "window(left=31)", "native | window(left=31)"):
        model = small()
        before = copy.deepcopy(model.config.to_dict())
        with refusing(ConfigurationError, "choosing-layer", "layer 1", "use_pattern(model)"):
            use_pattern(model, pattern)
        assert model.config.to_dict() == before
    with refusing(ConfigurationError, "choosing-layer"):
        use_pattern(small(), ["causal()", "selected(16, 5, 'given', first=0) & causal()", "causal()"])


def test_rows_that_it_would_choose_wrongly_in():
    model, ids = use_pattern(small()), tokens()
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with refusing(ConfigurationError, "choice-padded-left"):
        logits(model, ids, attention_mask=mask)
    places = torch.cat([torch.arange(100), torch.arange(50)])[None].expand(2, -1)
    with refusing(ConfigurationError, "choice-of-documents"):
        logits(model, ids, position_ids=places)


def test_caches_without_a_place_for_the_index():
    model, ids = use_pattern(small()), tokens()
    for cache in (PatternCache(), DynamicCache()):
        with refusing(ConfigurationError, "cache-without-index", "DynamicCache(config="):
            model(ids, past_key_values=cache, use_cache=True)
    with pytest.raises(ConfigurationError):
        model(ids, past_key_values=StaticCache(config=model.config, max_cache_len=200), use_cache=True)


@pytest.mark.parametrize(
    "changes", [{"index_block_size": 24}, {"index_local_blocks": 0}, {"index_local_blocks": 4}, {"index_block_size": 8}]
)
def test_choices_that_no_pattern_says(changes):
    with refusing(ConfigurationError, "native-choice", *changes):
        use_pattern(small(**changes))


def test_show_says_that_queries_choose(tmp_path, capsys):
    from asterism.cli.main import main

    with quiet_transformers():
        small().save_pretrained(tmp_path)
    assert main(["show", str(tmp_path), "-n", "512"]) == 0
    shown = capsys.readouterr().out
    assert "by blocks chosen by content" in shown and "dense    1 of 3 layers" in shown
    pairs = 16 * sum(min(i // 16, 2) for i in range(512)) + sum(i % 16 + 1 for i in range(512))
    assert f"{pairs:,}" in shown
