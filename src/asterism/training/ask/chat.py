"""A conversation with a run that was fine-tuned to answer: one turn after another, the cache kept between them."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from asterism.errors import ConfigurationError
from asterism.models.cache.naming import cache_of, with_cache
from asterism.quiet import quiet_transformers
from asterism.randomness import derive, isolated
from asterism.training.pipeline import Run
from asterism.training.run.arithmetic import arithmetic
from asterism.training.settings.sampling import Sampling
from asterism.training.tasks.models import ends, longest

_CUT_CHARACTER = "\ufffd"
"""What a tokenizer shows for a character of which it has not seen all tokens."""


class Chat:
    """A conversation. `messages` are those so far, each with role and content.

    A turn reads only what the conversation gained since the last one: the model's cache holds the rest. If the chat
    template renders earlier messages otherwise once others follow, the conversation is read again from the start, with
    the same answer.
    """

    def __init__(self, run: Run, how: Sampling, length: int) -> None:
        """Each answer has at most `length` tokens, drawn as `how` says.

        Raises ConfigurationError for a run that answers in no conversation.
        """
        self.run = run
        self.how, self.arguments = how, how.arguments(length)
        self.messages: list[dict[str, str]] = []
        self.reused = 0
        """How many tokens of the last prompt the cache held."""
        self._read: list[int] = []
        self._cache: Any = None
        run.objective.conversation([{"role": "user", "content": "?"}])

    def answer(self, text: str, write: Callable[[str], None] = lambda piece: None) -> str:
        """The answer to a user's message. `write` gets it piece by piece while it is generated.

        Raises ConfigurationError if the conversation is longer than the model reads. It is then as before.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self.run.objective.conversation(messages)
        self._refuse_too_long(prompt.shape[1])
        tokens = prompt[0].tolist()
        fits = len(self._read) < len(tokens) and tokens[: len(self._read)] == self._read
        cache, self.reused = (self._cache, len(self._read)) if fits else (None, 0)
        tokenizer = self.run.tokenizer
        assert tokenizer is not None  # that of the chat template
        model: Any = self.run.model  # transformers gives `generate` to models that can generate
        with (
            isolated(derive(self.how.seed, len(messages))),
            quiet_transformers(),
            arithmetic(self.run.config.dtype, model.device),
        ):
            found = model.generate(
                prompt.to(model.device),
                attention_mask=torch.ones_like(prompt, device=model.device),
                streamer=CharacterStreamer(tokenizer, write),
                return_dict_in_generate=True,
                **with_cache(cache),
                **self.run.objective.ending,
                **self.arguments,
            )
        sequence = found.sequences[:, prompt.shape[1] :].cpu()
        self._read = [*tokens, *sequence[0].tolist()][:-1]  # the last token was generated, but not read
        self._cache = cache_of(found)
        said = self.run.objective.written(prompt, sequence).decode().removeprefix("\n")
        self.messages = [*messages, {"role": "assistant", "content": said}]
        return said

    def _refuse_too_long(self, tokens: int) -> None:
        most, new = longest(self.run.model.config), self.arguments["max_new_tokens"]
        if most is not None and tokens + new > most and ends(self.run.model.config):
            raise ConfigurationError(
                "conversation-too-long",
                f"chat: the conversation has {tokens:,} tokens and an answer up to {new:,}, but the model reads"
                f" {most:,}: begin a new one, or lower --add",
            )


class CharacterStreamer(BaseStreamer):
    """Writes the text of tokens as they are generated, whole characters only."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Callable[[str], None]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.tokens: list[int] | None = None
        self.written = ""

    def put(self, value: torch.Tensor) -> None:
        """The prompt first, and then each new token: int64 [1, N] or [1]."""
        if self.tokens is None:
            self.tokens = []
            return
        self.tokens += value.flatten().tolist()
        text: Any = self.tokenizer.decode(self.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        self._extend(str(text).rstrip(_CUT_CHARACTER))

    def end(self) -> None:
        """All tokens were given."""

    def _extend(self, text: str) -> None:
        if text.startswith(self.written):
            self.write(text[len(self.written) :])
            self.written = text
