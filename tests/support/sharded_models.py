"""Small models with their batches, computed on one process and on several that share each sequence (gloo.py)."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import transformers
from repository import docs_page
from trained_shards import MODELS, built
from transformers import PreTrainedModel

import asterism.models as models
from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig, AsterismForCausalLM, use_pattern
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.cache import sharded as sharded_cache
from asterism.parallel import SequenceParallel, sequence_parallel, shard

VOCABULARY, TOKENS = 23, 13
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}


class Case(NamedTuple):
    """A model and its batch of whole rows; `shifts` as `shard` takes it; options of one process alone."""

    model: PreTrainedModel
    batch: dict[str, Any]
    shifts: bool = False


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def drawn(rows: int, tokens: int = TOKENS, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def batch(rows: int = 2, **more: Any) -> dict[str, Any]:
    tokens = drawn(rows)
    return {"input_ids": tokens, "labels": tokens.clone(), **more}


def padded(rows: dict[str, Any]) -> dict[str, Any]:
    """The same with rows of 13, 5 and 9 tokens."""
    real = torch.arange(TOKENS) < torch.tensor([TOKENS, 5, 9])[:, None]
    labels = rows["labels"]
    if labels.shape == real.shape:
        labels = labels.masked_fill(~real, -100)
    return rows | {"attention_mask": real.long(), "labels": labels}


def masked(rows: int = 2) -> dict[str, Any]:
    found = batch(rows)
    found["labels"][:, ::3] = -100
    return found


def encoder(mixers: str, head: str = "AsterismForMaskedLM", **fields: Any) -> PreTrainedModel:
    return getattr(models, head)(AsterismConfig(mixers=mixers, **SIZES | fields))


def causal(mixers: str = "fixed(stride=4, summary=1)", **fields: Any) -> PreTrainedModel:
    return encoder(mixers, "AsterismForCausalLM", **fields)


@case
def rotary() -> Case:
    return Case(causal(position_type="rotary", num_key_value_heads=1), batch(), True)


@case
def learned() -> Case:
    return Case(causal("interleave(window(3), stride(4) & causal())"), batch(), True)


@case
def recomputed() -> Case:
    model = causal()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return Case(model, batch(), True)


@case
def causal_padded() -> Case:
    return Case(causal(), padded(batch(3)), True)


@case
def packed_by_positions() -> Case:
    starts = [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]]
    return Case(causal(), batch(position_ids=torch.tensor(starts)), True)


@case
def packed_by_bounds() -> Case:
    return Case(encoder("bigbird(block=2, random=1)"), masked() | {"cu_seqlens": [0, 5, 5, 12, 13]})


@case
def dropping_pairs() -> Case:
    return Case(causal(attention_dropout=0.3), batch(dropout_seed=5), True)


@case
def smoothed_share_of_a_step() -> Case:
    return Case(causal(position_type="factorised", position_shape=[8, 8]), batch(num_items_in_batch=50), True)


@case
def by_length() -> Case:
    return Case(encoder("bigbird(block=2, random=1)"), padded(masked(3)))


@case
def masked_keys() -> Case:
    return Case(encoder("window(2, 2)", position_type="sinusoidal"), padded(masked(3)))


@case
def places() -> Case:
    asked = {"places": torch.tensor([[0, 3, 12, 0], [5, 6, 7, 8], [1, 2, 0, 0]])}
    labels = torch.tensor([[1, 2, 3, -100], [1, 2, 3, 4], [3, 4, -100, -100]])
    return Case(encoder("window(2, 2)"), batch(3) | asked | {"labels": labels})


@case
def fourier() -> Case:
    return Case(encoder("fourier()"), masked())


@case
def fourier_padded() -> Case:
    return Case(encoder("fourier()", hidden_size=10), padded(masked(3)))


@case
def global_tokens() -> Case:
    mixers = "interleave(bigbird_etc(block=2, random=1, globals=3), fourier())"
    return Case(encoder(mixers, global_tokens=3), padded(masked(3)))


@case
def global_projections() -> Case:
    return Case(encoder("longformer(window=4, globals=[0, 7])", global_projections=[7, 0]), padded(masked(3)))


@case
def buckets() -> Case:
    return Case(encoder("window(4, 4)", position_type="buckets"), masked())


@case
def all_attention() -> Case:
    return Case(causal("window(6)", block="all_attention", persistent_vectors=5, attention_bias=False), batch(), True)


@case
def adaptive_spans() -> Case:
    fields = {"position_type": "relative", "relative_span": 6, "adaptive_span": True, "adaptive_span_penalty": 0.1}
    model = causal("window(6)", block="all_attention", persistent_vectors=5, attention_bias=False, **fields)
    return Case(model, padded(batch(3)) | {"num_items_in_batch": 40}, True)


@case
def sequence_labels() -> Case:
    model = encoder("window(2, 2)", "AsterismForSequenceClassification", num_labels=3)
    return Case(model, padded(batch(3) | {"labels": torch.tensor([0, 2, 1])}))


@case
def mean_of_tokens() -> Case:
    head = "AsterismForSequenceClassification"
    model = encoder("window(2, 2)", head, num_labels=1, classifier_pooling="mean", problem_type="regression")
    return Case(model, padded(batch(3) | {"labels": torch.tensor([0.5, 2.0, 1.0])}))


@case
def token_labels() -> Case:
    labels = masked()["labels"].clamp(max=2)
    return Case(encoder("window(2, 2)", "AsterismForTokenClassification", num_labels=3), batch(labels=labels))


@case
def answers() -> Case:
    asked = {"start_positions": torch.tensor([2, 11]), "end_positions": torch.tensor([6, 13])}
    return Case(encoder("window(2, 2)", "AsterismForQuestionAnswering"), {"input_ids": drawn(2), **asked})


@case
def next_sentences() -> Case:
    types = torch.tensor([[0] * 5 + [1] * 8] * 2)
    more = {"token_type_ids": types, "next_sentence_label": torch.tensor([0, 1])}
    return Case(encoder("window(2, 2)", "AsterismForPreTraining", type_vocab_size=2), masked() | more)


def written(cross: str) -> Case:
    both: dict[str, Any] = {"is_encoder_decoder": True, "num_decoder_layers": 2, "decoder_mixers": "window(3)"}
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 1}
    model = encoder("window(3, 3)", "AsterismForConditionalGeneration", cross_mixers=cross, **both, **tokens)
    labels = drawn(3, 7, seed=2)
    labels[1, 4:] = -100
    inside = model.prepare_decoder_input_ids_from_labels(labels)
    real = padded(batch(3))["attention_mask"]
    return Case(model, {"input_ids": drawn(3), "attention_mask": real, "decoder_input_ids": inside, "labels": labels})


@case
def cross_attention() -> Case:
    return written("dense()")


@case
def cross_attention_by_place() -> Case:
    return written("across(window(2, 2), step=2)")


# --- models of transformers ------------------------------------------------------------------------------------------


def llama(pattern: str = "fixed(stride=4, summary=1)") -> PreTrainedModel:
    fields = {name: value for name, value in SIZES.items() if name != "max_position_embeddings"}
    config = transformers.LlamaConfig(**fields, num_key_value_heads=1, max_position_embeddings=64, use_cache=False)
    return use_pattern(transformers.LlamaForCausalLM(config), pattern)


@case
def llama_whole() -> Case:
    return Case(llama("window(3) | sinks(1, 1)"), batch(), True)


@case
def llama_recomputed() -> Case:
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return Case(model, padded(batch(3)), True)


@case
def llama_packed() -> Case:
    return Case(llama(), packed_by_positions().batch, True)


@case
def llama4() -> Case:
    """Layers without rotations scale their queries by positions, which they count themselves."""
    scaled = {"attn_temperature_tuning": True, "floor_scale": 2, "attn_scale": 0.5, "no_rope_layers": [1, 0]}
    chunks = {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 24, "head_dim": 8}
    config = transformers.Llama4TextConfig(**SIZES, **scaled, **chunks, num_key_value_heads=1, use_cache=False)
    return Case(use_pattern(transformers.Llama4ForCausalLM(config)), batch(), True)


@case
def gpt_neox() -> Case:
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, bos_token_id=0, eos_token_id=0))
    return Case(use_pattern(model, "fixed(stride=4, summary=1)"), batch(), True)


@case
def bert() -> Case:
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **none))
    return Case(use_pattern(model, "bigbird(block=2, random=1)"), padded(masked(3)))


@case
def modernbert() -> Case:
    windows = {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0, "reference_compile": False}
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**SIZES, **windows))
    return Case(use_pattern(model), padded(masked(3)))


def with_own_windows(name: str) -> Case:
    return Case(built(name, in_shards=True), padded(batch(3)), True)


CASES |= {f"{name}_own_windows": partial(with_own_windows, name) for name in MODELS}


# --- generation ------------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """Whether the tokens are those of one process, how many there are, and what this rank kept of the first layer."""

    is_equal: bool
    tokens: int
    kept: list[int]
    bytes: int


def writers() -> dict[str, tuple[PreTrainedModel, dict[str, Any]]]:
    """Models, and how they choose tokens."""
    spans: dict[str, Any] = {"position_type": "relative", "relative_span": 6, "persistent_vectors": 5}
    spans |= {"block": "all_attention", "attention_bias": False}
    sampled = {"do_sample": True, "top_k": 9, "top_p": 0.9, "temperature": 0.8, "seed": 3}
    return {
        "greedy": (causal(position_type="rotary", num_key_value_heads=1), {}),
        "sampled": (causal("per_head([window(3), stride(4) & causal()])"), sampled),
        "ended": (causal("window(3) | sinks(1, 1)"), {"eos_token_id": None}),
        "all_attention": (causal("window(6)", **spans), {}),
    }


def write(group: dist.ProcessGroup, name: str) -> Written:
    """With slots made two at a time, so that what is forgotten is forgotten soon."""
    sharded_cache._ROOM = 2
    model, options = writers()[name]
    model = prepare(model).eval()
    tokens, asked = drawn(2), options | {"max_new_tokens": 30, "pad_token_id": 0}
    if "eos_token_id" in options:
        asked["eos_token_id"] = model.generate(tokens, max_new_tokens=30, pad_token_id=0)[:, 20].tolist()
    torch.manual_seed(asked.get("seed", 0))
    expected = model.generate(tokens, **{key: x for key, x in asked.items() if key != "seed"})[:, TOKENS:]
    with sequence_parallel(group, dense_exchange=True) as context:
        cache = sharded_cache.ShardedCache(model.config.layer_patterns(), context)
        found = model.generate(**shard({"input_ids": tokens}, context), past_key_values=cache, **asked)
    return Written(torch.equal(found, expected), found.shape[1], cache.kept(), cache.nbytes)


def write_padded(group: dist.ProcessGroup) -> Written:
    """Rows of several lengths, each as if it were alone."""
    model, rows = prepare(causal()).eval(), padded(batch(3))
    pairs = zip(rows["input_ids"], rows["attention_mask"], strict=True)
    own = [model.generate(row[: int(real.sum())][None], max_new_tokens=9)[0, -9:] for row, real in pairs]
    with sequence_parallel(group, dense_exchange=True) as context:
        given = shard({name: rows[name] for name in ("input_ids", "attention_mask")}, context)
        found = model.generate(**given, max_new_tokens=9)
    return Written(torch.equal(found, torch.stack(own)), 9, [], 0)


_MESH = "from torch.distributed.device_mesh import init_device_mesh\n"
"""What the page imports, and the test has another of."""


def run_the_page(group: dist.ProcessGroup) -> list[float]:
    """The Python of the page on devices that needs several processes: its last loss, and that of one; lines written."""
    page = docs_page("howto/devices.md").read_text()
    # A mesh for as many processes as there are.
    known: dict[str, Any] = {"init_device_mesh": lambda *asked, **named: {"cp": group}}
    changes = {"max_new_tokens=100": "max_new_tokens=30", _MESH: "", "CausalLM(config)": "CausalLM(config).double()"}
    for text in re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for old, new in changes.items():
            text = text.replace(old, new)
        exec(compile(text, "devices.md", "exec"), known)
    return [known["outputs"].loss.item(), _of_one_process(known["config"]), known["new"].shape[1]]


def _of_one_process(config: Any) -> float:
    """The last loss of the page's training loop, without shards."""
    torch.manual_seed(0)
    model = AsterismForCausalLM(config).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        rows = torch.randint(256, (2, 1001), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


# --- refusals --------------------------------------------------------------------------------------------------------


def refused(context: SequenceParallel) -> dict[str, str]:
    """What is said, within the context, to what cannot work."""
    model, tokens = causal(), drawn(2, 4)
    hole = torch.ones(2, 4)
    hole[1, context.rank] = 0
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    roberta = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES, **none))
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    dropping = causal(attention_dropout=0.1).train()
    writer = encoder(
        "fourier()", "AsterismForConditionalGeneration", decoder_mixers="causal()", attention_dropout=0.1
    ).train()
    one = context.rank == 1
    named: dict[str, Callable[[], Any]] = {
        "labels": lambda: model(tokens, labels=tokens),
        "mask": lambda: model(tokens, attention_mask=hole),
        "mask of one": lambda: model(tokens, attention_mask=torch.ones(2, 4 + (context.rank == 1))),
        "rows": lambda: model(tokens[: 1 + (context.rank == 0)]),
        "dropout_seed of one": lambda: dropping(tokens, dropout_seed=None if one else 3),
        "dropout_seed of one writer": lambda: writer(tokens, decoder_input_ids=tokens, dropout_seed=None if one else 3),
        "labels of one": lambda: model(tokens, shift_labels=tokens if one else None),
        "labels of one classifier": lambda: encoder("window(2)")(tokens, labels=tokens if one else None),
        "wrong labels of one": lambda: model(tokens, shift_labels=tokens[:, one:]),
        "llama wrong labels of one": lambda: llama()(tokens, shift_labels=tokens[:, one:]),
        "tokens of all but one": lambda: model(None if one else tokens),
        "an argument of one": lambda: model(tokens, output_attentions=one),
        "seed of all but one": lambda: model.generate(
            tokens, max_new_tokens=2, do_sample=True, **({} if one else {"seed": 1})
        ),
        "llama labels of one": lambda: llama()(tokens, shift_labels=tokens if one else None),
        "llama unshifted labels of one": lambda: llama()(tokens, labels=tokens if one else None),
        "llama tokens of all but one": lambda: llama()(None if one else tokens),
        "llama cache of one": lambda: llama()(tokens, use_cache=one),
        "llama positions of one": lambda: llama()(tokens, position_ids=torch.zeros(1, 4 + one, dtype=torch.int64)),
        "cache": lambda: model(tokens, use_cache=True),
        "long": lambda: model(drawn(1, 40)),
        "seed": lambda: model.generate(tokens, max_new_tokens=2, do_sample=True),
        "beams": lambda: model.generate(tokens, max_new_tokens=2, num_beams=3),
        "packed": lambda: encoder("fourier()")(tokens, position_ids=torch.zeros(1, 4, dtype=torch.int64)),
        "part": lambda: llama().model(tokens),
        "llama cache": lambda: llama()(tokens, use_cache=True),
        "roberta": lambda: use_pattern(roberta, "window(2, 2)")(tokens),
        "nothing": lambda: llama()(tokens[:, : context.rank]),
        "pattern dropped": lambda: use_pattern(use_pattern(plain, "window(2)"), None)(tokens),
    }
    return {name: _said(call) for name, call in named.items()}


def _said(call: Callable[[], Any]) -> str:
    try:
        call()
    except ConfigurationError as error:
        return str(error)
    return "nothing"


# --- one process and several -----------------------------------------------------------------------------------------


class Found(NamedTuple):
    """How far a sharded model is from the whole one, and how large what was compared is."""

    loss: float
    gradient: float
    states: float
    largest: float
    missing: list[str]


KINDS = {1: ["even"], 2: ["even", "ragged"], 3: ["ragged"], 4: ["even", "ragged"]}
"""How tokens are shared out among so many ranks."""


COMPILED = " compiled"
"""After the name of a case: the model is compiled, graph by graph between attentions."""


def shards_of(kind: str, ranks: int, least: int) -> Shards | None:
    """Even parts by default; else parts of their own, some with no token, or with one where there must be one."""
    if kind == "even":
        return None
    short = {2: [least], 3: [least, 8], 4: [least, 1, least]}[ranks]
    return Shards.of_sizes((*short, TOKENS - sum(short)))


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Weights that none is 0, so that whatever is wrong shows."""
    model = model.double().train()
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn_weight = torch.randn(weight.shape, generator=random, dtype=weight.dtype) * 0.3
            weight.copy_(drawn_weight + ("norm" in name and name.endswith("weight")))
            if "adaptive_span" in name:
                weight.copy_(drawn_weight.abs())
    return model


def states_of(outputs: Any) -> list[torch.Tensor]:
    """What a model gives for every token."""
    fields = ("hidden_states", "decoder_hidden_states")
    return [states for field in fields for states in getattr(outputs, field, None) or ()]


def on_one(model: PreTrainedModel, rows: dict[str, Any], shifts: bool) -> tuple[Any, torch.Tensor]:
    """What one process gives, and its loss; that of transformers' models is rounded to float32, so not theirs."""
    if isinstance(model, AsterismPreTrainedModel):
        outputs = model(**rows, output_hidden_states=True)
        return outputs, outputs.loss
    outputs = model(**{name: x for name, x in rows.items() if name != "labels"}, output_hidden_states=True)
    labels = rows["labels"]
    if shifts:
        first = rows["position_ids"] == 0 if "position_ids" in rows else torch.zeros_like(labels, dtype=torch.bool)
        labels = torch.cat([labels.masked_fill(first, -100)[:, 1:], labels.new_full((len(labels), 1), -100)], dim=1)
    return outputs, torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


def compare(group: dist.ProcessGroup, name: str, kind: str) -> Found:
    torch.manual_seed(0)
    model, whole_rows, shifts = CASES[name.removesuffix(COMPILED)]()
    model = prepare(model)
    expected, expected_loss = on_one(model, whole_rows, shifts)
    expected_loss.backward()
    gradients = {key: weight.grad for key, weight in model.named_parameters()}
    model.zero_grad()
    with sequence_parallel(group, dense_exchange=True) as context:
        shards = shards_of(kind, context.ranks, least_of(model))
        call = torch.compile(model, backend="aot_eager") if name.endswith(COMPILED) else model
        outputs = call(**shard(whole_rows, context, shifts_labels=shifts, shards=shards), output_hidden_states=True)
    outputs.loss.backward()
    worst, missing = 0.0, []
    for key, weight in model.named_parameters():
        if gradients[key] is None:
            continue
        if weight.grad is None:
            missing.append(key)
        summed = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        dist.all_reduce(summed, group=group)
        worst = max(worst, (summed - gradients[key]).abs().max().item())
    largest = max(x.abs().max().item() for x in gradients.values() if x is not None)
    loss = abs(outputs.loss.item() - expected_loss.item())
    return Found(loss, worst, _apart(context, whole_rows, outputs, expected, shards), largest, missing)


def least_of(model: PreTrainedModel) -> int:
    """How many tokens a rank must have; those of transformers cannot be given none."""
    return 0 if isinstance(model, AsterismPreTrainedModel) else 1


def _apart(context: SequenceParallel, rows: dict[str, Any], outputs: Any, expected: Any, given: Shards | None) -> float:
    """The greatest difference of the hidden states of real tokens."""
    worst, own, all_states = 0.0, states_of(outputs), states_of(expected)
    assert own and len(own) == len(all_states)
    for state, whole_state in zip(own, all_states, strict=True):
        is_target = "decoder_input_ids" in rows
        shards = Shards.even(whole_state.shape[1], context.ranks)
        shards = shards if is_target or given is None else given
        first, past = shards.range(context.rank)
        difference = (state - whole_state[:, first:past]).abs()
        if "attention_mask" in rows and not is_target:
            difference = difference[rows["attention_mask"][:, first:past].bool()]
        worst = max([worst, *difference.flatten().tolist()])
    return worst


class Report(NamedTuple):
    """What a rank found of models and what it wrote, by name; the losses of the page; and what was refused."""

    found: dict[str, Found]
    written: dict[str, Written]
    page: list[float]
    refused: dict[str, str]


def compare_some(group: dist.ProcessGroup, names: Sequence[str]) -> dict[str, Found]:
    """By case and kind."""
    found = {}
    for name in names:
        for kind in KINDS[group.size()]:
            try:
                found[f"{name} {kind}"] = compare(group, name, kind)
            except Exception as error:
                error.add_note(f"in the case {name!r}, {kind}")
                raise
    return found


def report(group: dist.ProcessGroup) -> Report:
    found = compare_some(group, list(CASES))
    written = {name: write(group, name) for name in writers()} | {"padded": write_padded(group)}
    with sequence_parallel(group, dense_exchange=True) as context:
        said = refused(context)
    return Report(found, written, run_the_page(group), said)
