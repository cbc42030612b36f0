"""The tokenizer of a model of bytes, for libraries that ask for one: token v is the byte v."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

NUL = "\0"
"""Where training put a NUL byte (between files, before a record), a text begins and ends."""


def byte_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """A tokenizer of UTF-8 with 256 tokens, which adds nothing to a text; NUL begins, ends and pads."""
    letters = bytes_to_unicode()
    # The name of NUL is NUL itself and not its letter, which would be found in texts that have the letter.
    vocabulary = {letter if value else NUL: value for value, letter in letters.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(NUL, special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        **dict.fromkeys(("bos_token", "eos_token", "pad_token"), NUL),
    )
