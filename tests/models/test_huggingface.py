"""Encoders in the hands of transformers: pipelines and the Trainer, with a tokenizer made on the spot."""

from pathlib import Path

import pytest
import torch
from slow_cases import slow_except
from small_models import encoder_config
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline
from transformers.trainer_utils import set_seed

from asterism.models import (
    AsterismForMaskedLM,
    AsterismForSequenceClassification,
    AsterismForTokenClassification,
)

TEXTS = ["stars shine", "stars shine on sparse graphs and windows pass by", "windows pass by stars and graphs"]

WORDS = ["[PAD]", "[CLS]", "[MASK]", "[UNK]", *dict.fromkeys(" ".join(TEXTS).split())]


@pytest.fixture(params=["left", "right"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    """One token per word, [CLS] in front, and token types, as BERT's tokenizers give."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        unk_token="[UNK]",
        padding_side=request.param,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def model_of(kind: type, **fields: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = encoder_config("bigbird(block=2)", vocab_size=len(WORDS), initializer_range=0.5, **fields)
    return kind(config).eval()


@pytest.mark.parametrize(
    ("task", "kind", "texts"),
    [
        ("fill-mask", AsterismForMaskedLM, [f"{text} [MASK]" for text in TEXTS]),
        ("text-classification", AsterismForSequenceClassification, TEXTS),
        ("token-classification", AsterismForTokenClassification, TEXTS),
    ],
)
def test_pipelines(task: str, kind: type, texts: list[str], tokenizer: PreTrainedTokenizerFast) -> None:
    """A padded batch gives what every text gives alone."""
    names = {0: "near", 1: "far", 2: "none"}
    labels = {} if kind is AsterismForMaskedLM else {"id2label": names, "label2id": {n: i for i, n in names.items()}}
    run = pipeline(task, model=model_of(kind, type_vocab_size=2, **labels), tokenizer=tokenizer)
    alone = [run(text) for text in texts]
    together = run(texts, batch_size=3)
    for single, batched in zip(alone, together, strict=True):
        assert found(single) == found([batched] if isinstance(batched, dict) else batched)
    if labels:
        assert {row.get("label", row.get("entity")) for row in alone[1]} <= set(names.values())


def found(rows: list[dict]) -> list[dict]:
    """What a pipeline says, without its confidence and the column, which padding moves."""
    return [{key: value for key, value in row.items() if key not in ("score", "index")} for row in rows]


@pytest.mark.parametrize("tokenizer", ["left"], indirect=True)
@pytest.mark.parametrize("checkpointing", slow_except((False, True), True))
def test_trainer(checkpointing: bool, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Accumulated batches with unequal numbers of labels give the gradient of the whole batch: the loss falls alike."""
    rows = [tokenizer(text) for text in TEXTS * 4]
    for row in rows:
        row["labels"] = [-100] + row["input_ids"][1:]

    def collate(batch: list[dict]) -> dict[str, torch.Tensor]:
        padded = tokenizer.pad([{k: v for k, v in row.items() if k != "labels"} for row in batch], return_tensors="pt")
        padded["labels"] = padded["input_ids"].masked_fill(padded["attention_mask"] == 0, -100)
        return dict(padded)

    def final_loss(batch_size: int, folder: str) -> float:
        set_seed(0)
        arguments = TrainingArguments(
            output_dir=str(tmp_path / folder),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=12 // batch_size,
            max_steps=4,
            learning_rate=1e-2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        model = model_of(AsterismForMaskedLM, type_vocab_size=2)
        if checkpointing:
            with pytest.MonkeyPatch.context() as patch:
                # transformers 5.17 knows only the older of the two names, and later versions warn about it.
                patch.setattr("warnings.warn", lambda *_, **__: None)
                model.gradient_checkpointing_enable({"use_reentrant": False})
        Trainer(model, arguments, collate, rows).train()
        model.eval()
        with torch.no_grad():
            return model(**collate(rows)).loss.item()

    whole, parts = final_loss(12, "whole"), final_loss(3, "parts")
    assert parts == pytest.approx(whole, rel=0.02)
    with torch.no_grad():
        assert whole < 0.7 * model_of(AsterismForMaskedLM, type_vocab_size=2)(**collate(rows)).loss.item()
