"""Calls of models that share a sequence, in which one rank alone is given something wrong: over gloo (gloo.py), and
many more of them in threads (ranks_in_threads.py)."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import transformers
from ranks_in_threads import in_threads
from sharded_models import SIZES, VOCABULARY, causal, drawn, encoder, llama
from transformers import PreTrainedModel

from asterism.errors import AsterismError
from asterism.models import use_pattern
from asterism.parallel import sequence_parallel

ROWS, TOKENS = 2, 4
"""Of each rank."""


class Answer(NamedTuple):
    """How a rank ended a call: what it said, and when, in seconds of the machine's clock."""

    said: str
    at: float


def rows_of_tokens() -> torch.Tensor:
    return drawn(ROWS, TOKENS)


def token_labels(name: str) -> dict[str, Any]:
    return {"input_ids": rows_of_tokens(), name: rows_of_tokens()}


def bert(head: str, **fields: Any) -> PreTrainedModel:
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = transformers.BertConfig(**SIZES, **none, **fields)
    return use_pattern(getattr(transformers, head)(config), "bigbird(block=2, random=1)")


def written() -> PreTrainedModel:
    decoder = {"decoder_mixers": "window(3)", "cross_mixers": "dense()", "decoder_start_token_id": 0, "pad_token_id": 1}
    return encoder("window(3, 3)", "AsterismForConditionalGeneration", is_encoder_decoder=True, **decoder)


def classifier(**fields: Any) -> PreTrainedModel:
    return encoder("window(2, 2)", "AsterismForSequenceClassification", num_labels=3, **fields)


CLASSES = torch.tensor([2, 0])
SEVERAL = torch.tensor([[1.0, 0, 1], [0, 0, 1]])

HEADS: dict[str, tuple[Callable[[], PreTrainedModel], dict[str, Any]]] = {
    "causal": (causal, token_labels("shift_labels")),
    "masked": (lambda: encoder("window(2, 2)"), token_labels("labels")),
    "pretraining": (
        lambda: encoder("window(2, 2)", "AsterismForPreTraining"),
        token_labels("labels") | {"next_sentence_label": torch.tensor([0, 1])},
    ),
    "one class": (classifier, {"input_ids": rows_of_tokens(), "labels": CLASSES}),
    "several classes": (
        lambda: classifier(problem_type="multi_label_classification"),
        {"input_ids": rows_of_tokens(), "labels": SEVERAL},
    ),
    "tokens": (
        lambda: encoder("window(2, 2)", "AsterismForTokenClassification", num_labels=VOCABULARY),
        token_labels("labels"),
    ),
    "answers": (
        lambda: encoder("window(2, 2)", "AsterismForQuestionAnswering"),
        {"input_ids": rows_of_tokens(), "start_positions": CLASSES, "end_positions": CLASSES},
    ),
    "writer": (written, token_labels("labels") | {"decoder_input_ids": rows_of_tokens()}),
    "llama": (llama, token_labels("shift_labels")),
    "bert": (lambda: bert("BertForMaskedLM"), token_labels("labels")),
    "bert tokens": (lambda: bert("BertForTokenClassification", num_labels=VOCABULARY), token_labels("labels")),
}
"""Models with what each rank gives them; nothing in it is wrong."""

TARGETS = ("shift_labels", "labels", "next_sentence_label", "start_positions")
PACKED = ("causal", "masked", "tokens")
"""Heads whose rows may hold several documents."""


def wrong_mask(given: dict[str, Any]) -> None:
    given["attention_mask"] = torch.ones(ROWS, TOKENS + 1)


def wrong_token(given: dict[str, Any]) -> None:
    given["input_ids"] = given["input_ids"] + VOCABULARY


def broken_tokens(given: dict[str, Any]) -> None:
    given["input_ids"] = given["input_ids"] * 1.5


def no_labels(given: dict[str, Any]) -> None:
    for name in TARGETS:
        given.pop(name, None)


def fewer_labels(given: dict[str, Any]) -> None:
    name = next(name for name in TARGETS if name in given)
    given[name] = given[name][:1]


def wrong_label(given: dict[str, Any]) -> None:
    name = next(name for name in TARGETS if name in given)
    given[name] = given[name] + VOCABULARY


def no_seed(given: dict[str, Any]) -> None:
    del given["dropout_seed"]


def wrong_border(given: dict[str, Any]) -> None:
    given["cu_seqlens"] = [0, 3, 1000]


def wrong_count(given: dict[str, Any]) -> None:
    given["position_ids"] = torch.full((1, TOKENS), 7)


Break = Callable[[dict[str, Any]], None]


def cases() -> Iterator[tuple[str, Callable[[], PreTrainedModel], dict[str, Any], Break]]:
    """Name, model, what all ranks give, and how the odd one's is broken."""
    for head, (model, given) in HEADS.items():
        everywhere: list[Break] = [wrong_mask, wrong_token, broken_tokens, no_labels, fewer_labels]
        if head not in ("answers", "several classes"):  # positions beyond the text are ignored; numbers are no classes
            everywhere.append(wrong_label)
        for spoil in everywhere:
            start = {"attention_mask": torch.ones(ROWS, TOKENS)} if spoil is wrong_mask else {}
            yield f"{head}: {spoil.__name__}", model, given | start, spoil
    packed = {"cu_seqlens": wrong_border, "position_ids": wrong_count}
    for head in PACKED:
        model, given = HEADS[head]
        for name, spoil in packed.items():
            yield f"{head}: {spoil.__name__}", model, given | {name: None}, spoil
    seeded = {"input_ids": rows_of_tokens(), "dropout_seed": 3}
    yield "causal: no_seed", lambda: causal(attention_dropout=0.1).train(), seeded, no_seed


def ask(group: dist.ProcessGroup, odd: int) -> dict[str, Answer]:
    """How each call ends on this rank, by the name of its case."""
    found = {}
    for name, make, given, spoil in cases():
        torch.manual_seed(0)
        model, mine = make(), dict(given)
        with sequence_parallel(group, dense_exchange=True) as context:
            whole = context.ranks * TOKENS
            if "cu_seqlens" in mine:
                mine["cu_seqlens"] = [0, 3, whole]
            if "position_ids" in mine:
                mine["position_ids"] = torch.arange(context.rank * TOKENS, (context.rank + 1) * TOKENS)[None]
            if context.rank == odd:
                spoil(mine)
            found[name] = _answer(lambda model=model, mine=mine: model(**mine))
    return found


def _answer(call: Callable[[], Any]) -> Answer:
    try:
        call()
    except AsterismError as error:
        return Answer(str(error), time.monotonic())
    return Answer("nothing", time.monotonic())


# --- in threads ------------------------------------------------------------------------------------------------------

Change = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
"""What the odd rank is given instead, by name, or as a function of what all are given; None leaves an argument out."""

MASK = {"attention_mask": torch.ones(ROWS, TOKENS)}
WIDTH = SIZES["hidden_size"]


def targets(change: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {name: change(given[name]) for name in TARGETS if name in given}


CHANGES: dict[str, Change] = {
    "no tokens": {"input_ids": None},
    "tokens of other rows": {"input_ids": drawn(ROWS + 1, TOKENS)},
    "tokens without rows": {"input_ids": drawn(1, TOKENS)[0]},
    "too many tokens": {"input_ids": drawn(ROWS, 100)},
    "tokens and embeddings": {"inputs_embeds": torch.zeros(ROWS, TOKENS, WIDTH)},
    "narrow embeddings": {"input_ids": None, "inputs_embeds": torch.zeros(ROWS, TOKENS, 7)},
    "wide embeddings": {"input_ids": None, "inputs_embeds": torch.zeros(ROWS, TOKENS, WIDTH).double()},
    "types": {"token_type_ids": torch.full((ROWS, TOKENS), 5)},
    "types of fewer tokens": {"token_type_ids": torch.ones(ROWS, TOKENS - 1, dtype=torch.int64)},
    "a mask": MASK,
    "positions": {"position_ids": torch.zeros(ROWS, TOKENS)},
    "positions of more tokens": {"position_ids": torch.zeros(ROWS, TOKENS + 1, dtype=torch.int64)},
    "positions in a list": {"position_ids": [0, 1, 2, 3]},
    "borders": {"cu_seqlens": [0, 2, 8]},
    "a cache": {"use_cache": True},
    "attention weights": {"output_attentions": True},
    "an unknown argument": {"depth": 3},
    "items": {"num_items_in_batch": 5},
    "an ignored word": {"ignore_index": "none"},
    "smooth labels": {"label_smoothing": 3.0},
    "broken labels": targets(lambda labels: labels * 1.5),
    "labels in a list": targets(lambda labels: labels.tolist()),
    "labels of more axes": targets(lambda labels: labels[..., None]),
    "some targets": lambda given: dict.fromkeys(["next_sentence_label", "end_positions"]),
    "broken ends": {"end_positions": torch.tensor([1.0, 2.0])},
    "fewer logits": {"logits_to_keep": 2},
    "wrong logits": {"logits_to_keep": torch.tensor([77])},
}
MASKED: dict[str, Change] = {
    "scores for a mask": {"attention_mask": torch.full((ROWS, TOKENS), -1e9)},
    "a mask of pairs": {"attention_mask": torch.ones(ROWS, 1, TOKENS, TOKENS)},
    "a hole": {"attention_mask": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])},
    "no mask": {"attention_mask": None},
}
PLACED: dict[str, Change] = {
    "a place too far": {"places": torch.tensor([[0, 9], [1, 2]])},
    "places of one row": {"places": torch.tensor([[0, 1]])},
    "no places": {"places": None},
}
WRITTEN: dict[str, Change] = {
    "a mask of another target": {"decoder_attention_mask": torch.ones(ROWS, TOKENS + 1)},
    "no target": {"decoder_input_ids": None},
    "a target of other rows": {"decoder_input_ids": drawn(ROWS + 1, TOKENS)},
    "what an encoder gave": {"encoder_outputs": (torch.zeros(ROWS, TOKENS, WIDTH),)},
}
BORDERS: dict[str, Change] = {
    "other borders": {"cu_seqlens": [0, 2, 8]},
    "borders that fall": {"cu_seqlens": [0, 5, 3, 8]},
    "too few borders": {"cu_seqlens": [0, 3]},
    "broken borders": {"cu_seqlens": torch.tensor([0.0, 3.0, 8.0])},
    "no borders": {"cu_seqlens": None},
}
GENERATED: dict[str, Change] = {
    "more tokens": {"max_new_tokens": 5},
    "no end": {"max_new_tokens": None},
    "samples": {"do_sample": True, "seed": 3},
    "another end": {"eos_token_id": 3},
    "another mask": {"attention_mask": torch.ones(ROWS, TOKENS + 1)},
    "beams": {"num_beams": 3},
    "a thing for a cache": {"past_key_values": 3},
    "no prompt": {"input_ids": None},
}


class ThreadCase(NamedTuple):
    """A callable model, what all ranks give it, and what the odd one gives instead, by name."""

    make: Callable[[], Any]
    given: dict[str, Any]
    changes: dict[str, Change]


PLACES = {"places": torch.tensor([[0, 1], [1, 2]]), "labels": torch.tensor([[3, 4], [5, 6]])}

IN_THREADS: dict[str, ThreadCase] = {
    **{head: ThreadCase(make, given, CHANGES) for head, (make, given) in HEADS.items()},
    **{f"{head}, masked": ThreadCase(make, given | MASK, MASKED) for head, (make, given) in HEADS.items()},
    "fourier": ThreadCase(lambda: encoder("fourier()"), token_labels("labels"), CHANGES),
    "backbone": ThreadCase(lambda: causal().model, {"input_ids": rows_of_tokens()}, CHANGES),
    "no targets": ThreadCase(causal, {"input_ids": rows_of_tokens()}, {"wrong logits": CHANGES["wrong logits"]}),
    "places": ThreadCase(HEADS["masked"][0], HEADS["masked"][1] | PLACES, PLACED),
    "target": ThreadCase(written, HEADS["writer"][1] | {"decoder_attention_mask": torch.ones(ROWS, TOKENS)}, WRITTEN),
    "documents": ThreadCase(causal, HEADS["causal"][1] | {"cu_seqlens": [0, 3, 8]}, BORDERS),
    "generation": ThreadCase(
        lambda: causal().generate, {"input_ids": rows_of_tokens(), "max_new_tokens": 3}, GENERATED
    ),
}


def in_each_thread(name: str, change: str, ranks: int, odd: int) -> list[Any]:
    """What each rank returned or raised, of the case of that name, where the odd one's arguments are changed."""
    made, given, changes = IN_THREADS[name]
    model, instead = made(), changes[change]
    more = instead(given) if callable(instead) else instead

    def call(context: Any) -> None:
        mine = given | more if context.rank == odd else given
        model(**{key: x for key, x in mine.items() if x is not None})

    with torch.no_grad():
        return in_threads(ranks, call)
