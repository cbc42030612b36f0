"""Index branches: what teaches them, whom they teach not, and models whose layers choose by them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from asterism import attend, select
from asterism.errors import ConfigurationError, KernelError
from asterism.layers import IndexBranch, Rotary, SparseAttention, rows_of
from asterism.layers.index import Index, index_loss
from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForConditionalGeneration,
    AsterismForMaskedLM,
)
from asterism.models.exporting.ours import as_llama
from asterism.patterns import parse
from asterism.patterns.selected import bounds_of
from asterism.training.ask.estimate import index_flops

SELECTED = "selected(block=16, topk=3, score='{}') & causal()"
PATTERNS = (
    SELECTED.format("mean"),
    "window(left=7) | selected(block=16, topk=2, score='max', first=0) & causal()",
    "interleave(window(left=20), selected(block=16, topk=3, score='minmax', local=0) & causal())",
)
TOKENS, LENGTHS = 150, (150, 77, 33)


def operands(seed: int = 0, batch: int = 2) -> tuple[Index, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, 6), (2, 6), (6, 8), (2, 8)
    q_index, k_index, q, k = (
        torch.randn(batch, heads, 90, width, generator=generator, dtype=torch.float64) for heads, width in shapes
    )
    return Index(q_index * 2, k_index), q, k


def by_definition(index: Index, q: torch.Tensor, k: torch.Tensor, text: str, mask: torch.Tensor | None) -> torch.Tensor:
    """One query, head and block after the other."""
    pattern = parse(text)
    chosen, always, most, _ = bounds_of(pattern)
    n, size = q.shape[2], chosen.block
    may, read = (torch.tensor(rule.dense(n)[0]) for rule in (most, most))
    forced = torch.tensor((most & chosen.forced).dense(n)[0])
    always_read = torch.tensor(always.dense(n)[0])
    found = torch.zeros(*index.q.shape[:3], dtype=torch.float64)
    for row in range(len(q)):
        real = torch.ones(n, dtype=torch.bool) if mask is None else mask[row]
        for head in range(k.shape[1]):
            for place in range(n):
                weights = torch.zeros(n, dtype=torch.float64)
                keys = (read[place] & real).nonzero()[:, 0]
                for member in range(head * 3, head * 3 + 3):
                    scores = k[row, head, keys] @ q[row, member, place] / q.shape[3] ** 0.5
                    weights[keys] += scores.softmax(dim=0)
                mass, worth = [], []
                for block in range(n // size):  # a block that is not whole is nobody's choice
                    inside = torch.arange(block * size, (block + 1) * size)
                    open_ = may[place, inside].all() and not forced[place, inside].any()
                    if not open_ or always_read[place, inside].all() or not real[inside].any():
                        continue
                    there = index.k[row, head, inside[real[inside]]]
                    products = there @ index.q[row, head, place]
                    bound = index.q[row, head, place] * torch.stack([there.amin(dim=0), there.amax(dim=0)])
                    kinds = {"max": products.amax(), "mean": products.mean(), "minmax": bound.amax(dim=0).sum()}
                    worth.append(kinds[chosen.score] / index.q.shape[3] ** 0.5)
                    mass.append(weights[inside].sum())
                if mass:
                    p, log_q = torch.stack(mass), torch.stack(worth).log_softmax(dim=0)
                    p = p / p.sum()
                    found[row, head, place] = (p * (p.log() - log_q)).sum()
    return found


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("text", (*PATTERNS[:2], SELECTED.format("minmax")))
def test_the_loss_is_that_of_its_definition(text, masked, monkeypatch):
    monkeypatch.setattr("asterism.layers.index._AT_A_TIME", 2 * 6 * 90 * 7)  # seven queries at a time
    index, q, k = operands()
    mask = torch.rand(2, 90, generator=torch.Generator().manual_seed(1)) > 0.3 if masked else None
    if mask is not None:
        mask[0, 16:32], mask[:, 0] = False, True  # a block without a key
    found = index_loss(index, q, k, text, key_mask=mask)
    expected = by_definition(index, q, k, text, mask)
    assert (expected > 0.01).sum() > 50
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    later = index_loss(Index(index.q[:, :, 60:], index.k), q[:, :, 60:], k, text, key_mask=mask)
    torch.testing.assert_close(later, expected[:, :, 60:], rtol=1e-10, atol=1e-12)


def test_the_loss_is_nothing_for_a_branch_that_knows():
    """Equal queries and keys score every block alike, and equal keys get equal attention."""
    index, q, k = operands()
    same = Index(index.q, index.k[:, :, :1].expand(-1, -1, 90, -1))
    lost = index_loss(same, q, k[:, :, :1].expand(-1, -1, 90, -1), SELECTED.format("mean"))
    assert lost.abs().amax() < 1e-12


@pytest.mark.parametrize("score", ("mean", "max", "minmax"))
def test_gradients_are_those_of_differences(score, monkeypatch):
    monkeypatch.setattr("asterism.layers.index._AT_A_TIME", 6 * 90 * 20)
    index, q, k = operands(batch=1)

    def lost(q_index: torch.Tensor, k_index: torch.Tensor) -> torch.Tensor:
        return index_loss(Index(q_index, k_index), q, k, SELECTED.format(score)).mean()

    leaves = [x.clone().requires_grad_() for x in index]
    grads = torch.autograd.grad(lost(*leaves), leaves)
    generator = torch.Generator().manual_seed(2)
    ways = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in index]
    step = 1e-6
    ends = [lost(*(x + sign * step * way for x, way in zip(index, ways, strict=True))) for sign in (1, -1)]
    slope = sum((grad * way).sum() for grad, way in zip(grads, ways, strict=True))
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-10)
    assert slope.abs() > 1e-4


def test_the_loss_reaches_the_branch_alone():
    layer = SparseAttention(24, 6, SELECTED.format("max"), num_key_value_heads=2, rotary=Rotary(), index_dim=4)
    hidden = torch.randn(2, 90, 24, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows = rows_of(hidden)
    layer.train()(hidden, rows=rows)
    (penalty,) = rows.penalties
    own = dict(layer.named_parameters())
    grads = torch.autograd.grad(penalty, [hidden, *own.values()], allow_unused=True)
    assert grads[0] is None
    reached = {name for name, grad in zip(own, grads[1:], strict=True) if grad is not None and grad.abs().amax() > 0}
    assert reached == {"index.query.weight", "index.key.weight"}
    rows = rows_of(hidden)
    layer.eval()(hidden, rows=rows)
    assert not rows.penalties


def recall(index: Index, q: torch.Tensor, k: torch.Tensor, text: str) -> float:
    """How much of its attention a query gives to what it reads, over all it could."""
    n = q.shape[2]
    v = torch.ones(*k.shape[:3], 1)
    read, all_ = (
        attend(q, k, v, pattern, choice=choice, return_lse=True)[1]
        for pattern, choice in ((text, select(*index, text)), ("causal()", None))
    )
    return float((read - all_).exp()[:, :, n // 2 :].mean())


def test_a_branch_learns_to_choose():
    generator = torch.Generator().manual_seed(0)
    text, hidden = SELECTED.format("max"), torch.randn(2, 256, 32, generator=generator)
    sides = [torch.randn(32, 32, generator=generator) * 32**-0.5 for _ in range(2)]
    q, k = (2 * (hidden @ side).unflatten(-1, (2, 16)).transpose(1, 2) for side in sides)
    torch.manual_seed(0)
    branch = IndexBranch(32, 2, 16)
    optimiser = torch.optim.Adam(branch.parameters(), lr=1e-2)
    before = recall(branch(hidden), q, k, text)
    for _ in range(60):
        optimiser.zero_grad()
        index_loss(branch(hidden), q, k, text).mean().backward()
        optimiser.step()
    assert recall(branch(hidden), q, k, text) > before + 0.1


def model_of(mixers: str, kind: type = AsterismForCausalLM, **fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    fields = {"index_dim": 6, "position_type": "rotary", "num_attention_heads": 4, "num_key_value_heads": 2} | fields
    model = kind(AsterismConfig(mixers=mixers, max_position_embeddings=256, **sizes, **fields)).eval().double()
    with torch.no_grad():  # a new head is 0, and equal logits would say nothing
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def ids_of(rows: int = 3) -> torch.Tensor:
    return torch.randint(3, 40, (rows, TOKENS), generator=torch.Generator().manual_seed(1))


def places(side: str, length: int) -> slice:
    return slice(TOKENS - length, TOKENS) if side == "left" else slice(0, length)


def padded(ids: torch.Tensor, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    found, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        found[row, places(side, length)] = ids[row, :length]
        mask[row, places(side, length)] = 1
    return found, mask


@torch.no_grad()
def test_the_branch_chooses():
    model, ids = model_of(PATTERNS[0]), ids_of()
    before = model(ids, use_cache=False).logits
    for block in model.model.layers:
        block.mixer.index.query.weight.neg_()
    assert (model(ids, use_cache=False).logits - before)[:, 64:].abs().amax() > 1e-2


@pytest.mark.parametrize("mixers", PATTERNS)
@torch.no_grad()
def test_a_cache_changes_no_token(mixers):
    model, ids = model_of(mixers), ids_of()
    whole = model(ids, use_cache=False).logits
    cache, logits = None, []
    for begin, end in ((0, 50), (50, 120), (120, 121), (121, 150)):
        out = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, [*logits, out.logits]
    torch.testing.assert_close(torch.cat(logits, dim=1), whole, rtol=0, atol=1e-9)
    rows, mask = padded(ids, "left")
    given = {"input_ids": rows, "attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    one, other = (model.generate(**given, use_cache=cached) for cached in (True, False))
    assert torch.equal(one, other)


@pytest.mark.parametrize("mixers", PATTERNS)
@torch.no_grad()
def test_padding_and_documents_change_no_token(mixers):
    model, ids = model_of(mixers), ids_of()
    for side in ("left", "right"):
        rows, mask = padded(ids, side)
        found = model(rows, attention_mask=mask, use_cache=False).logits
        for row, length in enumerate(LENGTHS):
            alone = model(ids[row : row + 1, :length], use_cache=False).logits[0]
            torch.testing.assert_close(found[row, places(side, length)], alone, rtol=0, atol=1e-9)
    positions = torch.cat([torch.arange(60), torch.arange(90)]).expand(3, -1)
    found = model(ids, position_ids=positions, use_cache=False).logits
    for part in (slice(0, 60), slice(60, 150)):
        alone = model(ids[:, part], use_cache=False).logits
        torch.testing.assert_close(found[:, part], alone, rtol=0, atol=1e-9)


def penalty_of(model, ids: torch.Tensor, **given) -> torch.Tensor:
    """What index branches add to the loss."""
    labels = ids if "attention_mask" not in given else ids.masked_fill(given["attention_mask"] == 0, -100)
    losses = [model.train(mode)(ids, labels=labels, use_cache=False, **given).loss.detach() for mode in (True, False)]
    return losses[0] - losses[1]


@pytest.mark.parametrize("mixers", PATTERNS)
def test_padding_teaches_nothing(mixers):
    model, ids = model_of(mixers), ids_of()
    alone = [penalty_of(model, ids[row : row + 1, :length]) * length for row, length in enumerate(LENGTHS)]
    expected = sum(alone) / sum(LENGTHS)
    assert expected > 1e-3
    for side in ("left", "right"):
        rows, mask = padded(ids, side)
        torch.testing.assert_close(penalty_of(model, rows, attention_mask=mask), expected, rtol=1e-9, atol=0)
    laid = torch.cat([ids[row, :length] for row, length in enumerate(LENGTHS)])[None]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    torch.testing.assert_close(penalty_of(model, laid, position_ids=positions), expected, rtol=1e-9, atol=0)


def test_the_penalty_is_the_mean_of_layers():
    model, ids = model_of(PATTERNS[0], attention_scale=0.9), ids_of()
    lost = []

    def watch(mixer: SparseAttention, inputs: tuple[torch.Tensor]) -> None:
        hidden, places = inputs[0], torch.arange(TOKENS)[None]
        q, k, _ = mixer._project(hidden, places, (mixer.query, mixer.key, mixer.value))
        lost.append(index_loss(mixer.index(hidden), q, k, PATTERNS[0], scale=0.9).mean().detach())

    for block in model.model.layers:
        block.mixer.register_forward_pre_hook(watch)
    penalty = penalty_of(model, ids)
    assert len(lost) == 4 and lost[0] != lost[1]
    torch.testing.assert_close(penalty, (lost[0] + lost[1]) / 2, rtol=1e-9, atol=0)


def test_a_model_learns_as_if_nobody_watched(tmp_path):
    model, ids = model_of(PATTERNS[1]), ids_of()
    names = dict(model.named_parameters())
    grads = []
    for mode in (True, False):
        model.train(mode)
        loss = model(ids, labels=ids, use_cache=False).loss
        grads.append(torch.autograd.grad(loss, list(names.values()), allow_unused=True))
    for name, learning, watching in zip(names, *grads, strict=True):
        if ".index." in name:
            assert learning.abs().amax() > 0 and watching is None, name
        else:
            torch.testing.assert_close(learning, watching, rtol=1e-12, atol=1e-12, msg=name)
    model.eval().save_pretrained(tmp_path)
    again = AsterismForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        one, other = (each(ids, use_cache=False).logits for each in (again, model))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_encoders_learn_for_blocks_of_queries():
    model, ids = model_of("window(3, 3) | selected(block=16, topk=3, query_block=16)", AsterismForMaskedLM), ids_of()
    rows, mask = padded(ids, "left")
    found = model(rows, attention_mask=mask).logits
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length]).logits[0]
        torch.testing.assert_close(found[row, places("left", length)], alone, rtol=0, atol=1e-9)
    assert penalty_of(model, rows, attention_mask=mask) > 0.01


def test_refusals():
    index, q, k = operands()
    ids = ids_of()
    with_decoder = AsterismConfig(index_dim=4, decoder_mixers="causal()")
    checkpointing = model_of(PATTERNS[0]).train()
    getattr(checkpointing, "activation_checkpointing_enable", checkpointing.gradient_checkpointing_enable)()
    refusals = (
        (ConfigurationError, "needs a layer", lambda: model_of("causal()")),
        (ConfigurationError, "one stack", lambda: AsterismForConditionalGeneration(with_decoder)),
        (ConfigurationError, "all_attention", lambda: model_of(PATTERNS[0], block="all_attention")),
        (ConfigurationError, "index branch", lambda: as_llama(model_of(PATTERNS[0]).config, "AsterismForCausalLM")),
        (ConfigurationError, "5 wide", lambda: model_of(PATTERNS[0], index_dim=5)),
        (ConfigurationError, "a score of mean", lambda: SparseAttention(8, 2, "causal()", index_dim=4)),
        (ConfigurationError, "a score of mean", lambda: SparseAttention(8, 2, SELECTED.format("given"), index_dim=4)),
        (ConfigurationError, "switch it off", lambda: checkpointing(ids)),
        (KernelError, "nothing to choose", lambda: index_loss(index, q, k, "causal()")),
        (KernelError, "learns scores", lambda: index_loss(index, q, k, SELECTED.format("given"))),
        (KernelError, "index.q and index.k", lambda: index_loss(Index(index.q, q), q, k, PATTERNS[0])),
        (KernelError, "torch.Tensor", lambda: index_loss(Index(None, index.k), q, k, PATTERNS[0])),
    )
    for error, words, refused in refusals:
        with pytest.raises(error) as caught:
            refused()
        assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("score", ["mean", "max", "minmax"])
def test_a_dry_run_counts_what_the_branch_learns_by(score):
    """The products that PyTorch counts, of one sequence; the last block is not whole."""
    tokens, text = 100, SELECTED.format(score)
    config = AsterismConfig(mixers=text, hidden_size=48, num_attention_heads=6, num_key_value_heads=2, index_dim=10)
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 10), (2, 10), (6, 8), (2, 8)
    index_q, index_k, q, k = (torch.randn(1, heads, tokens, width, generator=generator) for heads, width in shapes)
    with FlopCounterMode(display=False) as counted:
        index = Index(index_q.requires_grad_(), index_k.requires_grad_())
        index_loss(index, q, k, text).mean().backward()
    assert index_flops(config, parse(text), tokens) == pytest.approx(counted.get_total_flops(), rel=0.01)
