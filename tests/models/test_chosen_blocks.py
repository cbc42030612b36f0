"""Models of ours whose layers choose blocks of keys: padding, documents, caches and estimates change nothing."""

import pytest
import torch
from slow_cases import slow_except
from transformers import LlamaConfig, LlamaForCausalLM

from asterism import attend, select
from asterism.compiler.blocks import pairs_read
from asterism.compiler.devices.communicate import communicate
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape
from asterism.errors import AsterismError, PatternError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, use_pattern
from asterism.patterns import parse
from asterism.theory import certify

PATTERNS = (
    "selected(block=16, topk=3) & causal()",
    "window(left=7) | selected(block=16, topk=2, score='max', first=0) & causal()",
    "interleave(window(left=20), selected(block=16, topk=3, score='minmax', local=0) & causal())",
)
SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
TOKENS, LENGTHS = 150, (150, 77, 33)


def model_of(mixers: str, kind: type = AsterismForCausalLM):
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = AsterismConfig(mixers=mixers, position_type="rotary", max_position_embeddings=256, **heads, **SIZES)
    model = kind(config).eval()
    with torch.no_grad():  # a new head is 0, and equal logits would say nothing
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def ids_of(rows: int = 3) -> torch.Tensor:
    return torch.randint(3, 40, (rows, TOKENS), generator=torch.Generator().manual_seed(1))


def places(side: str, length: int) -> slice:
    return slice(TOKENS - length, TOKENS) if side == "left" else slice(0, length)


def padded(ids: torch.Tensor, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows cut to LENGTHS, and the mask of their tokens."""
    found, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        found[row, places(side, length)] = ids[row, :length]
        mask[row, places(side, length)] = 1
    return found, mask


@torch.no_grad()
def test_choices_matter_here():
    ids = ids_of()
    some, all_ = (model_of(f"selected(block=16, topk={topk}) & causal()")(ids).logits for topk in (3, 10))
    assert (some - all_)[:, 64:].abs().amax() > 1e-2
    torch.testing.assert_close(all_, model_of("causal()")(ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mixers", PATTERNS)
@pytest.mark.parametrize("side", ("left", "right"))
@torch.no_grad()
def test_padding_changes_no_token(mixers, side):
    model, ids = model_of(mixers), ids_of()
    rows, mask = padded(ids, side)
    found = model(rows, attention_mask=mask, use_cache=False).logits
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length], use_cache=False).logits[0]
        torch.testing.assert_close(found[row, places(side, length)], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mixers", PATTERNS)
@torch.no_grad()
def test_documents_choose_for_themselves(mixers):
    model, ids = model_of(mixers), ids_of()
    positions = torch.cat([torch.arange(60), torch.arange(90)]).expand(3, -1)
    found = model(ids, position_ids=positions, use_cache=False).logits
    for part in (slice(0, 60), slice(60, 150)):
        alone = model(ids[:, part], use_cache=False).logits
        torch.testing.assert_close(found[:, part], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mixers", slow_except(PATTERNS, PATTERNS[-1]))
@torch.no_grad()
def test_a_cache_changes_no_token(mixers):
    model, ids = model_of(mixers), ids_of()
    rows, mask = padded(ids, "left")
    for given in ({"input_ids": ids[:, :40]}, {"input_ids": rows, "attention_mask": mask}):
        one, other = (
            model.generate(**given, max_new_tokens=24, do_sample=False, use_cache=cached) for cached in (True, False)
        )
        assert torch.equal(one, other)
    whole = model(ids, use_cache=False).logits
    cache, logits = None, []
    for begin, end in ((0, 50), (50, 120), (120, 121), (121, 150)):
        out = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, [*logits, out.logits]
    torch.testing.assert_close(torch.cat(logits, dim=1), whole, rtol=0, atol=1e-4)


def test_learns_through_padding(tmp_path):
    model, ids = model_of(PATTERNS[1]).train(), ids_of()
    rows, mask = padded(ids, "right")
    loss = model(rows, attention_mask=mask, labels=rows.masked_fill(mask == 0, -100), use_cache=False).loss
    loss.backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in model.parameters())
    model.eval().save_pretrained(tmp_path)
    again = AsterismForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(ids, use_cache=False).logits, model(ids, use_cache=False).logits)


@torch.no_grad()
def test_encoders_choose_among_all_blocks():
    model, ids = model_of("window(3, 3) | selected(block=16, topk=3, query_block=16)", AsterismForMaskedLM), ids_of()
    rows, mask = padded(ids, "left")
    found = model(rows, attention_mask=mask).logits
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length]).logits[0]
        torch.testing.assert_close(found[row, places("left", length)], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("text", ("selected(16, 3) & causal()", "window(9) | selected(32, 2, first=0) & causal()"))
def test_pairs_are_counted_whatever_is_chosen(text):
    n, pattern = 140, parse(text)
    q, k = torch.randn(2, 1, 1, n, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = torch.eye(n, dtype=torch.float64)[None, None]
    read = attend(q, k, v, pattern, choice=select(q, k, pattern), implementation="eager") > 0
    assert read.sum() <= pairs_read(pattern, n, n, 0) <= read.sum() + (0 if "window" not in text else 10 * n)


def test_what_needs_a_pattern_before_its_tokens_refuses():
    text = PATTERNS[0]
    for refusing in (
        lambda: use_pattern(LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4)), text),
        lambda: certify(text, 64),
        lambda: communicate(text, Shards.even(64, 2), Shards.even(64, 2), RowShape(1, 4, 4, 8, 8, 4)),
        lambda: model_of("per_head([selected(16, 2), dense(), dense(), dense()]) & causal()")(ids_of()),
    ):
        with pytest.raises(PatternError) as caught:
            refusing()
        assert "selected" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(AsterismError, match="query_block|later"):
        model_of("selected(16, 2, query_block=8) & causal()")
