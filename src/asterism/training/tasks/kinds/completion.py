"""Completion: a causal model continues a prompt as its training examples do.

Files: JSONL or CSV with the fields `prompt` and `completion`, or prompts and completions as lines of two files. Prompt
and completion are put together as they are. So white space between them belongs to one of them.
"""

from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from asterism.training.data.records.record import Record
from asterism.training.tasks.continued import Continued
from asterism.training.tasks.kinds.continuing import ContinuedAnswers, ContinuedRows
from asterism.training.tasks.kinds.writing import Pair, PairExamples
from asterism.training.tasks.task import Kind


class Completions(PairExamples):
    """Prompts with their completions."""

    names: ClassVar[tuple[str, str]] = ("prompt", "completion")
    question: ClassVar[str | None] = None


class CompletionRows(ContinuedRows):
    """Rows of prompts and completions. The tokenizer begins a prompt as it begins a text, and ends no prompt."""

    def prompt(self, example: Pair, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        ids = list(tokenizer(example.source, verbose=False)["input_ids"])
        special = set(tokenizer.all_special_ids)
        while len(ids) > 1 and ids[-1] in special and ids[-1] != tokenizer.unk_token_id:
            del ids[-1]
        if not ids:
            raise example.record.error(example.names[0], "has nothing of which the tokenizer makes a token")
        return np.array(ids, dtype=np.int32)

    def typed(self, text: str, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        return self.prompt(Pair(Record("the prompt", {}), text, None, None, Completions.names), tokenizer)

    def learned(self, example: Pair, tokenizer: PreTrainedTokenizerFast) -> list[Continued]:
        prompt = self.prompt(example, tokenizer)
        answer = tokenizer(example.target or "", add_special_tokens=False, verbose=False)["input_ids"]
        if not answer:
            raise example.record.error(example.names[1], "has nothing of which the tokenizer makes a token")
        tokens = np.array([*prompt, *answer, self.end], dtype=np.int32)
        return [Continued(tokens, np.arange(len(tokens)) >= len(prompt), len(prompt))]


class CompletionAnswers(ContinuedAnswers):
    """Completions that are right or wrong."""

    answer: ClassVar[str] = "completion"


COMPLETION = Kind("completion", Completions, CompletionRows, CompletionAnswers)
