"""Chat templates: conversations as text, and as tokens of which the answers are learned.

A template is text in Jinja, which transformers runs in a sandbox. Most tokenizers of chat models bring their own. The
prompt of an answer is the conversation before it, rendered with what asks for an answer (`add_generation_prompt`). The
answer is what the template then adds, up to the last special token, which ends it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.training.tasks.continued import Continued

BUILT_IN = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "plain": "{% if bos_token %}{{ bos_token }}{% endif %}{% for message in messages %}{{ message['role'].capitalize()"
    " }}: {{ message['content'] }}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
}
"""Templates by the names that `chat_template` may give. "plain" needs no token but the one that ends a text."""

Message = Mapping[str, str]
Span = tuple[int, int]


@dataclass(frozen=True)
class Ending:
    """How a template surrounds an answer.

    token  the token that ends it
    lead   text that the template puts in front of it, such as an empty block of thoughts; usually empty
    """

    token: int
    lead: str


def chosen_template(asked: str | None, own: Any, folder: str) -> Any:
    """The template to use: the requested one, a name or a file, or else the tokenizer's `own`.

    Raises ConfigurationError for a file that cannot be read, and if there is no template.
    """
    if asked is None:
        if own:
            return own
        raise ConfigurationError(
            "chat-template-missing",
            f"model: the tokenizer in {folder} has no chat template; give chat_template: a file in Jinja, or one of"
            f" {', '.join(BUILT_IN)}",
        )
    if asked in BUILT_IN:
        return BUILT_IN[asked]
    try:
        return Path(asked).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "chat-template-unreadable",
            f"chat_template: {asked!r} is not one of {', '.join(BUILT_IN)}, and cannot be read as a file:"
            f" {getattr(error, 'strerror', None) or error}",
        ) from None


def ending_of(tokenizer: PreTrainedTokenizerFast, folder: str) -> Ending:
    """How the tokenizer's template surrounds an answer.

    Raises ConfigurationError for a template that cannot be run, that does not continue its own prompt, or that ends an
    answer without a special token.
    """
    asked, answered = {"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}
    try:
        prompt, text = rendered(tokenizer, [asked], asks=True), rendered(tokenizer, [asked, answered])
    except Exception as error:  # whatever a template raises
        raise _unusable(folder, f"cannot be used: {_in_one_line(error)}") from None
    if not text.startswith(prompt) or "answer" not in text[len(prompt) :]:
        raise _unusable(folder, "renders an answer otherwise than behind the prompt that asks for it")
    lead, _, end = text[len(prompt) :].partition("answer")
    special = [token for token in _ids(tokenizer, end) if token in tokenizer.added_tokens_decoder]
    if not special:
        raise _unusable(folder, f"ends an answer with {end!r}, in which no special token says where to stop")
    return Ending(special[-1], lead)


def _unusable(folder: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        "chat-template-unusable",
        f"chat_template: the template for the tokenizer in {folder} {reason}; give another: a file in Jinja, or one of"
        f" {', '.join(BUILT_IN)}",
    )


def rendered(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], *, asks: bool = False) -> str:
    """A conversation as text; with `asks`, the text that asks the model for an answer follows."""
    text: Any = tokenizer.apply_chat_template(
        [dict(one) for one in messages], tokenize=False, add_generation_prompt=asks
    )
    return str(text)


def prompt_tokens(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], place: str) -> np.ndarray:
    """The tokens that ask for the next answer: int32 [N]. Raises DataError for messages that the template refuses."""
    return np.array(_ids(tokenizer, _rendered(tokenizer, messages, place, asks=True)), dtype=np.int32)


def conversations(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], end: int, place: str
) -> Iterator[Continued]:
    """The rows of a conversation that ends with an answer.

    One row learns all answers. If the template renders earlier answers otherwise once others follow, such as without
    their thoughts, each answer has a row of its own. Raises DataError for messages that the template refuses.
    """
    answers = [number for number, one in enumerate(messages) if one["role"] == "assistant"]
    texts, spans = [], []
    for number in answers:
        prompt = _rendered(tokenizer, messages[:number], place, asks=True)
        text = _rendered(tokenizer, messages[: number + 1], place)
        if not text.startswith(prompt):
            raise DataError(
                "chat-template-changes-prompt",
                f"{place}: the chat template renders the answer in message {number + 1} otherwise than behind the"
                " prompt that asks for it; give another chat_template",
            )
        texts.append(text)
        spans.append((len(prompt), len(text)))
    if all(texts[-1].startswith(text) for text in texts):
        texts, spans_of = texts[-1:], [spans]
    else:
        spans_of = [[span] for span in spans]
    for text, some in zip(texts, spans_of, strict=True):
        yield _continued(tokenizer, text, some, end, place)


def _continued(tokenizer: PreTrainedTokenizerFast, text: str, spans: Sequence[Span], end: int, place: str) -> Continued:
    """The tokens of a text, of which those in the spans are learned, up to the last `end` of each."""
    tokens, begins = _tokens(tokenizer, text, [border for span in spans for border in span])
    learned, answer, last = np.zeros(len(tokens), dtype=bool), 0, 0
    for first, after in spans:
        answer, stop = (int(one) for one in np.searchsorted(begins, (first, after)))
        ends = np.flatnonzero(tokens[answer:stop] == end)
        if not len(ends):
            raise DataError(
                "answer-without-end", f"{place}: the chat template does not end an answer as it ends others"
            )
        last = answer + int(ends[-1]) + 1
        learned[answer:last] = True
    return Continued(tokens[:last], learned[:last], answer)


def _tokens(tokenizer: PreTrainedTokenizerFast, text: str, borders: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a text, int32 [N], and the character at which each begins, int64 [N].

    A prompt is tokenized alone when the model is asked. So where one token would reach across a border, the stretches
    between borders are tokenized one by one.
    """
    found: Any = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = np.array(found["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    crossed = any(((offsets[:, 0] < border) & (offsets[:, 1] > border)).any() for border in borders)
    if not crossed:
        return np.array(found["input_ids"], dtype=np.int32), np.maximum.accumulate(offsets[:, 0])
    ends = [0, *sorted(set(borders) - {0, len(text)}), len(text)]
    pieces = [(first, _ids(tokenizer, text[first:after])) for first, after in zip(ends[:-1], ends[1:], strict=True)]
    tokens = np.concatenate([np.array(ids, dtype=np.int32) for _, ids in pieces])
    return tokens, np.concatenate([np.full(len(ids), first, dtype=np.int64) for first, ids in pieces])


def _rendered(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], place: str, asks: bool = False) -> str:
    try:
        return rendered(tokenizer, messages, asks=asks)
    except Exception as error:  # whatever a template raises
        raise DataError(
            "chat-template-refuses", f"{place}: the chat template refuses the messages: {_in_one_line(error)}"
        ) from None


def _ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: Any = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return list(ids)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
