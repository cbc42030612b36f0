"""The tokens of pictures, sounds and whatever else is a sequence of 8-bit values: value v is token v.

So a model that has learned the density of such sequences reads them as a classifier with the same embedding. There are
no special tokens: padding is masked, and a model that answers for a row does so by the mean of its tokens.
"""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

VALUES = 256


def value_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 256 tokens, two hexadecimal digits each: what a folder keeps to say how its model reads.

    Values never become text; they are tokens as they are.
    """
    tokenizer = Tokenizer(models.WordLevel({f"{value:02x}": value for value in range(VALUES)}, unk_token="00"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def is_of_values(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer is one that `value_tokenizer` made."""
    return tokenizer.get_vocab() == {f"{value:02x}": value for value in range(VALUES)}
