"""Instruction: a causal model answers in a conversation.

Files: JSONL with the field `messages`, a list of {"role", "content"}, as the interfaces of OpenAI and Hugging Face have
it. The model's chat template renders it as text (`tasks/templates.py`). A model learns every answer of the assistant,
and is asked for the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from asterism.errors import nearest, shown
from asterism.training.data.records.record import Record
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.continued import Continued
from asterism.training.tasks.kinds.continuing import ContinuedAnswers, ContinuedRows
from asterism.training.tasks.kinds.writing import Pair, PairExamples
from asterism.training.tasks.task import Kind
from asterism.training.tasks.templates import chosen_template, conversations, ending_of, prompt_tokens

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGES = "messages"


@dataclass(frozen=True)
class Conversation(Pair):
    """Messages as people read them, and the last answer; `messages` are those before it."""

    messages: tuple[Mapping[str, str], ...] = ()


class Conversations(PairExamples):
    """Conversations, each with its last answer."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl",)
    names: ClassVar[tuple[str, str]] = (MESSAGES, "answer")
    question: ClassVar[str | None] = None

    def example(self, record: Record, *, labelled: bool) -> Conversation:
        """Messages and the last answer; if not `labelled`, an answer at the end is left out.

        Raises DataError for messages that are no conversation, and if `labelled`, for one that ends without an answer.
        """
        messages = _messages(record)
        is_answered = messages[-1]["role"] == "assistant"
        if labelled and not is_answered:
            raise record.error(
                MESSAGES, f"ends with a message of {messages[-1]['role']}; the last one must be the assistant's answer"
            )
        asked = tuple(messages[:-1] if is_answered else messages)
        if not asked:
            raise record.error(MESSAGES, "holds only an answer; a question must precede it")
        source = "\n".join(f"{one['role']}: {one['content']}" for one in asked)
        return Conversation(record, source, messages[-1]["content"] if labelled else None, None, self.names, asked)


def _messages(record: Record) -> list[dict[str, str]]:
    """The messages of a record. Raises DataError, which says which message is wrong."""
    given = record.get(MESSAGES)
    if not isinstance(given, list) or not given:
        raise record.error(MESSAGES, f"must be a list of messages with role and content, got {shown(given)}")
    found = []
    for number, one in enumerate(given, start=1):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise record.error(MESSAGES, f"has no role and content, both texts, in message {number}: {shown(one)}")
        if role not in ROLES:
            raise record.error(
                MESSAGES,
                f"has an unknown role in message {number}: {shown(role)}.{nearest(role, ROLES)} Known:"
                f" {', '.join(ROLES)}",
            )
        record.refuse_surrogates(MESSAGES, content)
        if not content.strip():
            raise record.error(MESSAGES, f"has no content in message {number}, of {role}")
        found.append({"role": role, "content": content})
    return found


class ConversationRows(ContinuedRows):
    """Rows of conversations, as the chat template of the tokenizer renders them."""

    def prompt(self, example: Any, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        return prompt_tokens(tokenizer, example.messages, example.record.place)

    def typed(self, text: str, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        """The text is the message of a user."""
        return self.conversed([{"role": "user", "content": text}], tokenizer)

    def conversed(self, messages: Sequence[Mapping[str, str]], tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        return prompt_tokens(tokenizer, messages, "the prompt")

    def learned(self, example: Any, tokenizer: PreTrainedTokenizerFast) -> list[Continued]:
        messages = [*example.messages, {"role": "assistant", "content": example.target}]
        return list(conversations(tokenizer, messages, self.end, example.record.place))


@dataclass(frozen=True, kw_only=True)
class ConversationAnswers(ContinuedAnswers):
    """Answers of the assistant.

    lead  text that the chat template puts in front of an answer and that is no part of it
    """

    answer: ClassVar[str] = "answer"

    lead: str = ""

    @classmethod
    def fitted(cls, config: FineTuneConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """The tokenizer with the requested chat template."""
        tokenizer.chat_template = chosen_template(config.chat_template, tokenizer.chat_template, config.model)
        return tokenizer

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        found = super().choices(config, model, tokenizer)
        return {**found, "lead": ending_of(tokenizer, config.model).lead}

    @classmethod
    def ending(cls, config: FineTuneConfig, tokenizer: PreTrainedTokenizerFast) -> int:
        """The last special token of an answer, as the chat template renders it."""
        return ending_of(tokenizer, config.model).token

    def text(self, tokens: Any, tokenizer: PreTrainedTokenizerFast) -> str:
        return super().text(tokens, tokenizer).strip().removeprefix(self.lead.strip())

    def following(self, tokens: Any, tokenizer: PreTrainedTokenizerFast) -> str:
        """The answer, on a line of its own."""
        return f"\n{self.text(tokens, tokenizer)}"


INSTRUCTION = Kind("instruction", Conversations, ConversationRows, ConversationAnswers)
