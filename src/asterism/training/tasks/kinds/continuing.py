"""What tasks have in common in which a causal model continues a text: rows of prompt and answer, and what is generated.

The loss is that of the answers' tokens, with the token that ends each. A row holds a prompt and its answer, or with
`packing` several examples that do not read each other. If a row would be longer than `length`, the oldest tokens of the
prompt are left out, or with reader whole() the example is refused. Answers are never cut, unless `target_length` says
at how many tokens.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.labels import IGNORED
from asterism.training.data.corpora.tokenization import end_of
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.causal import follow, refuse_readers
from asterism.training.tasks.continued import Continued, packed
from asterism.training.tasks.kinds.writing import Pair, TextAnswers
from asterism.training.tasks.rows import ExampleRows, Feature, pad
from asterism.training.tasks.scores.baselines import answer_baselines
from asterism.training.tasks.scores.texts import exactness


@dataclass(frozen=True, kw_only=True)
class ContinuedRows(ExampleRows[Pair]):
    """Rows of prompts with their answers; for prediction, of prompts alone.

    target_length  how many tokens an answer may have, the one that ends it included
    cuts_targets   whether the end of a longer training answer is cut off
    packing        whether a training row holds several examples
    end            the token that ends an answer
    """

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut")

    target_length: int
    cuts_targets: bool
    packing: bool = False
    end: int

    # --- of an example ----------------------------------------------------------------------------------------------

    @abstractmethod
    def prompt(self, example: Pair, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        """The tokens that ask for an answer: int32 [N]. Raises DataError for an example that cannot be asked."""

    @abstractmethod
    def learned(self, example: Pair, tokenizer: PreTrainedTokenizerFast) -> list[Continued]:
        """The tokens of an example with its answers, in one or several rows. Raises DataError as `prompt` does."""

    def _feature(self, example: Pair, whole: Continued, room: int, tokenizer: PreTrainedTokenizerFast) -> Feature:
        begins = bool(len(whole.tokens)) and int(whole.tokens[0]) == tokenizer.bos_token_id
        feature = whole.feature(room, begins=begins)
        if feature.is_cut and not self.reading.cuts:
            raise DataError(
                "bad-example",
                f"{example.record.place}: the example has {len(whole.tokens):,} tokens and a row has place for"
                f" {room:,}, and reader whole() cuts nothing: give a longer length, or reader cut(), which leaves out"
                " the oldest tokens of the prompt",
            )
        return feature

    # --- of examples ------------------------------------------------------------------------------------------------

    def features(self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Feature]]:
        """Prompts, which leave room for an answer."""
        for example in examples:
            tokens = self.prompt(example, tokenizer)
            whole = Continued(tokens, np.zeros(len(tokens), dtype=bool), len(tokens))
            yield [self._feature(example, whole, self.length - self.target_length, tokenizer)]

    def training_features(
        self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """Prompts with their answers. Raises DataError also for an answer that leaves no room for its prompt."""
        for example in examples:
            rows = []
            for whole in self.learned(example, tokenizer):
                tokens = len(whole.tokens) - whole.answer
                shorter = whole.with_shorter_answer(self.target_length) if self.cuts_targets else whole
                if len(shorter.tokens) - shorter.answer >= self.length:
                    raise example.record.error(
                        example.names[1],
                        f"has {tokens:,} tokens, and a row of {self.length:,} also holds its prompt; leave it out, give"
                        " a longer length, or give target_length to have longer answers cut off",
                    )
                feature = self._feature(example, shorter, self.length, tokenizer)
                rows.append(replace(feature, cuts_target=shorter is not whole))
            yield rows

    def answered_features(self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Iterator[Feature]:
        """Every row of prompt and answer."""
        for rows in self.training_features(examples, tokenizer):
            yield from rows

    def measured(self, training: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """The longest training answer, in tokens, unless the settings say how long answers may be.

        Raises ConfigurationError if they leave no room for a prompt.
        """
        if self.cuts_targets:
            if self.target_length >= self.length:
                raise ConfigurationError(
                    "target-fills-row",
                    f"target_length: got {self.target_length:,} tokens, which leaves no room for a prompt in a row of"
                    f" {self.length:,}; give a smaller one, or a longer length",
                )
            return {}
        sizes = [len(one.tokens) - one.answer for example in training for one in self.learned(example, tokenizer)]
        return {"target_length": min(max(sizes), self.length - 1)}

    def laid_out(self, features: Sequence[Feature]) -> tuple[Sequence[Feature], list[str]]:
        if not self.packing:
            return features, []
        rows = packed(features, self.length)
        tokens = sum(len(row.inputs["input_ids"]) for row in rows)
        filled = tokens / (len(rows) * self.length)
        return rows, [f"packing: {len(features):,} examples in {len(rows):,} rows, {filled:.0%} full"]

    def notes(self, examples: Sequence[Pair], features: Sequence[Sequence[Feature]]) -> list[str]:
        """A note on the number of cut answers."""
        cut, rows = sum(one.cuts_target for some in features for one in some), sum(map(len, features))
        if not cut:
            return []
        return [
            f"{cut:,} of {rows:,} training rows have an answer of more than {self.target_length:,} tokens, which was"
            " cut off: a greater target_length would keep it whole"
        ]

    # --- of a batch -------------------------------------------------------------------------------------------------

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: int64 [B, length], the learned tokens at their own places; IGNORED elsewhere."""
        return {"labels": pad([feature.target for feature in features], length, IGNORED)}


@dataclass(frozen=True, kw_only=True)
class ContinuedAnswers(TextAnswers):
    """Texts with which a causal model continues a prompt.

    stops  the tokens at which an answer ends
    """

    architecture: ClassVar[str] = "AutoModelForCausalLM"
    metric: ClassVar[str] = "exact_match"
    arguments: ClassVar[Mapping[str, Any]] = {"use_cache": False}

    stops: tuple[int, ...]

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The token that ends an answer, and the length of answers if the settings say it.

        Raises ConfigurationError for a model that is not causal, and for a tokenizer without that token.
        """
        if model.is_encoder_decoder:
            raise ConfigurationError(
                "not-a-causal-model",
                f"model: {config.model} holds an encoder-decoder ({model.model_type}); give a causal model such as"
                " Llama or Qwen, or use --task generate",
            )
        end = cls.ending(config, tokenizer)
        stops = dict.fromkeys(token for token in (end, tokenizer.eos_token_id) if token is not None)
        return {
            "target_length": config.target_length or 0,
            "cuts_targets": config.target_length is not None,
            "end": end,
            "stops": tuple(stops),
        }

    @classmethod
    def ending(cls, config: FineTuneConfig, tokenizer: PreTrainedTokenizerFast) -> int:
        """The token that ends an answer."""
        found = end_of(tokenizer)
        if found is None:
            raise ConfigurationError(
                "token-missing",
                f"model: the tokenizer in {config.model} has no end-of-sequence token (eos_token), which ends an"
                " answer; give it one",
            )
        return found

    def prepare(self, model: PreTrainedModel, config: FineTuneConfig) -> None:
        """Give the model its pattern. Raises also PatternError."""
        follow(model, config)
        refuse_readers(model, config)

    def generation(self, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
        return self.search(**self._ends(tokenizer))

    def given(self, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Rows padded on the left, because what is generated follows the last column."""
        real = inputs["attention_mask"]
        length = real.shape[1]
        columns = torch.arange(length, device=real.device) - (length - real.sum(1, keepdim=True))
        moved = {name: one.gather(1, columns.clamp(min=0)) for name, one in inputs.items()}
        return {**moved, "attention_mask": (columns >= 0).to(real.dtype)}

    def texts(
        self, found: torch.Tensor, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[str]:
        """What follows the prompts, up to the first of `stops`."""
        return [self.text(row, tokenizer) for row in found[:, inputs["input_ids"].shape[1] :].tolist()]

    def text(self, tokens: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> str:
        """The text of an answer's tokens."""
        end = next((at for at, token in enumerate(tokens) if token in self.stops), len(tokens))
        return super().following(tokens[:end], tokenizer)

    def following(self, tokens: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> str:
        return self.text(tokens, tokenizer)

    def sampled(self, tokenizer: PreTrainedTokenizerFast) -> Mapping[str, Any]:
        return {**self._ends(tokenizer), "num_beams": 1}

    def _ends(self, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        filler = self.stops[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        return {"pad_token_id": filler, "eos_token_id": list(self.stops), "use_cache": True}

    def baselines(
        self, training: Sequence[Pair], scored: Sequence[Pair], there: Sequence[Any]
    ) -> dict[str, dict[str, float]]:
        """The most frequent answer, and the answer to the nearest training prompt."""
        known = [(one.source, one.target or "") for one in training]
        return answer_baselines(known, [one.source for one in scored], lambda said: self.score(said, there))

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`exact_match`, and `token_accuracy` of tokens that are separated by white space."""
        return exactness(predicted, there)
