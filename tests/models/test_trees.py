"""Sequences that share beginnings, run as one row: the logits, and the gradients of the summed loss, of each alone."""

import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks_in_threads import in_threads
from refusals import refusing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from asterism.errors import ConfigurationError, PatternError
from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForMaskedLM,
    AsterismForSequenceClassification,
    draft_tree,
    tree_of,
    use_pattern,
)

TOKENS = 50
SIZES = dict(vocab_size=TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
GROUPED = SIZES | {"num_key_value_heads": 2}
MODELS = {
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)), "causal()"),
    "mistral": (lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=5)), "native"),
    "gemma3": (
        lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(
                **GROUPED, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
            )
        ),
        "native",
    ),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=8)), "causal()"),
    "gpt2": (
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=TOKENS, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
        ),
        "causal()",
    ),
    "gpt-neox": (lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, bos_token_id=0, eos_token_id=0)), "causal()"),
}


def sequences() -> list[list[int]]:
    draw = random.Random(0)
    prompt, other = ([draw.randrange(TOKENS) for _ in range(n)] for n in (11, 4))
    answers = [prompt + [draw.randrange(TOKENS) for _ in range(n)] for n in (7, 1, 13, 9)]
    return [*answers, prompt[:6] + [1, 2, 3, 4], answers[0] + [5, 6], other + [1], other, prompt, answers[1]]


def model_in_float64(name: str):
    """In training without dropout, and without the casts to float32 of some norms."""
    torch.manual_seed(0)
    make, along = MODELS[name]
    model = make().double().train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = partial(_norm, part, 1.0 if type(part).__name__.startswith("Gemma") else 0.0)
    model.set_attn_implementation("sdpa")
    return model, along


def _norm(part, add, hidden):
    epsilon = getattr(part, "variance_epsilon", getattr(part, "eps", None))
    return hidden * (hidden.square().mean(-1, keepdim=True) + epsilon).rsqrt() * (part.weight + add)


def summed_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=-100)


def compare_with_each_alone(model, rows, run_alone, run_packed) -> None:
    """`run_alone(row [1, n])` and `run_packed()` -> logits; the loss of all sequences is summed."""
    packed = tree_of(rows)
    alone = []
    for row in rows:
        logits = run_alone(torch.tensor([row]))[0]
        summed_loss(logits[:-1], torch.tensor(row[1:])).backward()
        alone.append(logits.detach())
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    logits = run_packed(packed)
    summed_loss(logits[0, packed.index], packed.labels).backward()
    assert packed.input_ids.shape[1] < sum(map(len, rows)) / 2, "beginnings are shared"
    for place, (row, own) in enumerate(zip(rows, alone, strict=True)):
        torch.testing.assert_close(logits[0, packed.index[place, : len(row)]], own, atol=1e-10, rtol=0)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], atol=1e-10, rtol=1e-10, msg=name)


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name):
    model, along = model_in_float64(name)

    def run_packed(packed):
        use_pattern(model, packed.pattern(along))
        return model(input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False).logits

    compare_with_each_alone(model, sequences(), lambda row: model(row, use_cache=False).logits, run_packed)


def own_model(mixers="causal()", kind=AsterismForCausalLM, **more):
    torch.manual_seed(0)
    sizes = dict(vocab_size=TOKENS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    config = AsterismConfig(**sizes, **{"position_type": "rotary", "max_position_embeddings": 64} | more, mixers=mixers)
    return kind(config).double().train()


@pytest.mark.parametrize("position_type", ["rotary", "learned"])
@pytest.mark.parametrize("mixers", ["causal()", "interleave(window(left=3), sinks(first=2, window=4))", "strided(4)"])
def test_our_models(mixers, position_type):
    model = own_model(mixers, position_type=position_type)
    compare_with_each_alone(
        model,
        sequences(),
        lambda row: model(row).logits,
        lambda packed: model(packed.input_ids, parents=packed.parents, position_ids=packed.position_ids).logits,
    )


def test_a_batch_of_trees():
    """Parents for each row, and several trees in a row with parents that count from their first token."""
    model = own_model("window(left=2)")
    ids = torch.arange(12).reshape(2, 6)
    parents = torch.tensor([[-1, 0, 0, -1, 3, 3], [-1, 0, 1, 1, 1, 0]])
    found = model(ids, parents=parents).logits
    for row in range(2):
        alone = model(ids[row : row + 1], parents=parents[row]).logits
        torch.testing.assert_close(found[row : row + 1], alone, atol=1e-12, rtol=0)
    local = model(ids, parents=[-1, 0, 0, -1, 0, 0], cu_seqlens=[0, 3, 6]).logits
    torch.testing.assert_close(local[:1], found[:1], atol=1e-12, rtol=0)


# --- making trees ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_sequences_are_paths_of_the_tree(seed):
    draw = random.Random(seed)
    rows = [[draw.randrange(2) for _ in range(draw.randrange(1, 9))] for _ in range(draw.randrange(1, 12))]
    packed = tree_of([torch.tensor(row) if draw.random() < 0.5 else np.array(row) for row in rows])
    ids, parents = packed.input_ids[0].tolist(), packed.parents.tolist()
    assert len(ids) == len({tuple(row[: end + 1]) for row in rows for end in range(len(row))}), "each beginning once"
    for place, row in enumerate(rows):
        columns = packed.index[place, : len(row)].tolist()
        assert [ids[column] for column in columns] == row
        assert [parents[column] for column in columns] == [-1, *columns[:-1]]
        assert packed.position_ids[0, columns].tolist() == list(range(len(row)))
        assert packed.labels[place].tolist() == row[1:] + [-100] * (packed.labels.shape[1] - len(row) + 1)
    assert all(parent < column for column, parent in enumerate(parents))


def test_drafts_in_any_order():
    packed = draft_tree([5, 6, 7], torch.tensor([1, 2, 3, 4, 1, 2]), [-1, 0, -1, 0, 2, 4])
    assert packed.parents.tolist() == [-1, 0, 1, 2, 3, 2, 3, 5, 7]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 4, 4, 5]]
    rows = [packed.input_ids[0, places].tolist() for places in packed.index]
    assert rows == [[5, 6, 7, 1, 2, 5], [5, 6, 7, 1, 4, 5], [5, 6, 7, 3, 1, 2]]
    assert packed.labels.tolist() == [[6, 7, 1, 2, -100, -100], [6, 7, 1, 4, -100, -100], [6, 7, 3, 1, 2, -100]]


def test_a_million_shared_tokens():
    prompt = list(range(10**6))
    packed = tree_of([prompt, [*prompt, 1], [*prompt, 2]])
    assert packed.input_ids.shape == (1, 10**6 + 2)
    assert packed.pattern() == f"tree(parents='{10**6 + 1}:{10**6 - 1}', size={10**6 + 2}, pattern=causal())"


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([], "tree-of-nothing"),
        ([[]], "tree-tokens-form"),
        ([[1], [1.5]], "tree-tokens-form"),
        ([[[1]]], "tree-tokens-form"),
        (["ab"], "tree-tokens-form"),
        ([[True]], "tree-tokens-form"),
        ([1, 2], "tree-tokens-form"),
    ],
)
def test_what_is_no_sequence(given, code):
    with refusing(ConfigurationError, code):
        tree_of(given)


def test_what_are_no_drafts():
    with refusing(ConfigurationError, "draft-parents", "2", "1"):
        draft_tree([1], [2, 3], [-1])
    with refusing(PatternError, "tree-parent", "token 0"):
        draft_tree([1], [2], [0])
    with refusing(ConfigurationError, "tree-tokens-form", "prompt"):
        draft_tree([], [2], [-1])


@pytest.fixture(scope="module")
def packed():
    return tree_of(sequences())


def llama():
    return LlamaForCausalLM(LlamaConfig(**GROUPED)).eval()


@pytest.mark.model
def test_calls_that_a_tree_does_not_fit(packed):
    model = use_pattern(llama(), packed.pattern())
    ids, positions = packed.input_ids, packed.position_ids
    good = dict(input_ids=ids, position_ids=positions, use_cache=False)
    shorter = dict(input_ids=ids[:, :9], position_ids=positions[:, :9], use_cache=False)
    padded = torch.ones_like(ids)
    padded[0, 0] = 0
    row = torch.arange(ids.shape[1])[None]
    for call, code in (
        (good | {"position_ids": None}, "tree-positions"),
        (good | {"position_ids": row}, "tree-positions"),
        (good | {"position_ids": row % 5}, "tree-positions"),
        (good | {"use_cache": True}, "tree-with-cache"),
        (good | {"attention_mask": padded}, "tree-with-cache"),
        (shorter, "tree-length"),
    ):
        with refusing(ConfigurationError, code) as refusal:
            model(**call)
        assert "\n" not in str(refusal.value)
    with refusing(ConfigurationError, "tree-with-cache"):
        model.generate(ids, max_new_tokens=2, pad_token_id=0)
    model(**good | {"attention_mask": torch.ones_like(ids)})


@pytest.mark.model
@pytest.mark.parametrize("kind", ["ours", "llama"])
def test_shards_are_refused_on_all_ranks(packed, kind):
    model = own_model() if kind == "ours" else use_pattern(llama(), packed.pattern())
    ids, positions = packed.input_ids, packed.position_ids

    def call(context):
        own = slice(*((0, 20) if context.rank == 0 else (20, ids.shape[1])))
        if kind == "ours":
            return model(ids[:, own], parents=packed.parents[own])
        return model(input_ids=ids[:, own], position_ids=positions[:, own], use_cache=False)

    for error in in_threads(2, call):
        assert isinstance(error, ConfigurationError), error
        assert error.code in ("parents-in-shards", "tree-in-shards", "rank-refused") or "sequence_parallel" in str(
            error
        )


@pytest.mark.model
def test_rows_of_one_tree(packed):
    model = use_pattern(llama(), packed.pattern())
    ids = torch.cat([packed.input_ids, packed.input_ids.flip(1)])
    found = model(input_ids=ids, position_ids=packed.position_ids, use_cache=False).logits
    for row in range(2):
        alone = model(input_ids=ids[row : row + 1], position_ids=packed.position_ids, use_cache=False).logits
        torch.testing.assert_close(found[row : row + 1], alone)


@pytest.mark.model
def test_windows_along_the_row_are_refused(packed):
    model = MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=5))
    with refusing(ConfigurationError, "tree-window", "native"):
        use_pattern(model, packed.pattern(), native_window="intersect")
    for text in (f"native & {packed.pattern()}", f"{packed.pattern('native')} | native"):
        with refusing(ConfigurationError, "native-outside-tree"):
            use_pattern(model, text)
    with refusing(ConfigurationError, "several-trees"):
        use_pattern(model, f"{packed.pattern('native')} | {tree_of([[1, 2], [1, 3]]).pattern()}")(
            input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False
        )
    use_pattern(model, packed.pattern(), native_window="replace")  # the window is given up
    sizes = SIZES | {"hidden_size": 16}
    with refusing(ConfigurationError, "tree-not-causal"):
        use_pattern(BertForMaskedLM(BertConfig(**sizes)), packed.pattern())


def test_arguments_of_our_models(packed):
    model = own_model()
    ids, parents = packed.input_ids, packed.parents
    wrong = torch.arange(ids.shape[1])[None]
    padded = torch.ones_like(ids)
    padded[0, -1] = 0
    for given, error, code in (
        ({"parents": parents[:-1]}, ConfigurationError, "parents-shape"),
        ({"parents": [[0], [1, 2]]}, ConfigurationError, "parents-shape"),
        ({"parents": parents.double()}, PatternError, "tree-form"),
        ({"parents": torch.arange(ids.shape[1])}, PatternError, "tree-parent"),
        ({"parents": parents, "position_ids": wrong}, ConfigurationError, "tree-positions"),
        ({"parents": parents, "attention_mask": padded}, ConfigurationError, "trees-padded"),
        ({"parents": parents, "labels": ids}, ConfigurationError, "tree-labels"),
        ({"parents": parents, "use_cache": True}, ConfigurationError, "cache-with-positions"),
        ({"parents": parents, "cu_seqlens": [0, 3]}, PatternError, "tree-borders"),
    ):
        with refusing(error, code):
            model(ids, **given)
    with refusing(ConfigurationError, "tree-distances"):
        own_model(position_type="buckets")(ids, parents=parents)
    with refusing(ConfigurationError, "tree-not-causal"):
        own_model("dense()", kind=AsterismForMaskedLM)(ids, parents=parents)
    with refusing(ConfigurationError, "packed-rows-pooled"):
        own_model(kind=AsterismForSequenceClassification)(ids, parents=parents)
