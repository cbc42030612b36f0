"""Packed sequences: `cu_seqlens` is read once, checked, and becomes part of the pattern.

So plans, kernels and their schemas know nothing of it.
"""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from asterism.errors import KernelError, shown
from asterism.kernels.checks import check_types
from asterism.memo import remembering_few
from asterism.patterns import Pattern, documents
from asterism.patterns.by_text import by_text, remember

_READ = WeakTensorKeyDictionary()
"""What GPU tensors said, with their versions: every layer is given the same one, and reading it stops the GPU."""


def pattern_of_documents(
    text: str,
    cu_seqlens: Tensor | Sequence[int],
    lengths: tuple[int, int],
    device: torch.device,
    offset: object,
) -> str:
    """The text of the pattern by which each document follows the pattern `text` by itself.

    Document i has the tokens cu_seqlens[i] to cu_seqlens[i + 1] (int32 or int64 [documents + 1], or a list) of the
    queries and of the keys, whose numbers are `lengths`, and queries are all of the keys' tokens. Raises KernelError
    where that does not fit.
    """
    n_queries, n_keys = lengths
    at_start = offset is None or isinstance(offset, int | torch.SymInt) and offset == 0
    if n_queries != n_keys or not at_start:
        raise KernelError(
            "cu-seqlens-across",
            f"cu_seqlens needs queries and keys of the same tokens, got {n_queries} queries and {n_keys}"
            f" keys{'' if at_start else f', and query_offset {shown(offset)}'}",
        )
    bounds = read_bounds(cu_seqlens, device)
    if torch.compiler.is_compiling():
        return _text_in_graph(text, bounds, int(n_queries))
    return remember(_documents(text, bounds, n_queries))


def read_bounds(bounds: Tensor | Sequence[int], device: torch.device, name: str = "cu_seqlens") -> tuple[int, ...]:
    """The numbers [documents + 1], int32 or int64 where they are a tensor, unchecked but for their type.

    Raises KernelError, about `name`.
    """
    if isinstance(bounds, Tensor):
        return _values(bounds, device, name)
    try:
        return tuple(operator.index(bound) for bound in bounds)
    except TypeError:
        raise KernelError("cu-seqlens-not-whole", f"{name} must be whole numbers, got {shown(bounds)}") from None


def _values(bounds: Tensor, device: torch.device, name: str) -> tuple[int, ...]:
    if torch.compiler.is_compiling():
        raise KernelError(
            "cu-seqlens-in-compile",
            f"inside torch.compile the lengths of documents must be constants: give {name} as a list of numbers, not"
            " as a tensor, or the pattern as documents(pattern, length, length, ...)",
        )
    check_types(**{name: bounds})
    if bounds.ndim != 1 or bounds.dtype not in (torch.int32, torch.int64):
        seen = f"{list(bounds.shape)} of {bounds.dtype}"
        raise KernelError("cu-seqlens-form", f"{name} must be [documents + 1] of int32 or int64, got {seen}")
    if bounds.device not in (device, torch.device("cpu")):
        raise KernelError("cu-seqlens-device", f"{name} must be on the CPU or on {device} as q is, got {bounds.device}")
    # On the CPU reading costs nothing, and NumPy may have written to the same memory.
    is_free = bounds.device.type == "cpu" or bounds.is_inference()
    return tuple(bounds.tolist()) if is_free else _read_once(bounds)


def _read_once(bounds: Tensor) -> tuple[int, ...]:
    """The values, read again only after they were written to."""
    version, values = _READ.get(bounds, (None, ()))
    if version != bounds._version:
        values = tuple(bounds.tolist())
        _READ[bounds] = bounds._version, values
    return values


def _documents(text: str, bounds: tuple[int, ...], tokens: int) -> Pattern:
    return one_after_another(by_text(text), document_lengths(bounds, tokens, "cu_seqlens"))


# They must live until the backward pass, which has only the text; and that, which is long, is written once.
@remembering_few(128)
def one_after_another(pattern: Pattern, lengths: tuple[int, ...]) -> Pattern:
    """`documents(pattern, *lengths)`."""
    return documents(pattern, *lengths)


def document_lengths(bounds: tuple[int, ...], tokens: int, name: str) -> tuple[int, ...]:
    """The lengths of the documents between `bounds`, without those of no token.

    Raises KernelError, about `name`, for bounds that do not go from 0 to `tokens` or that fall.
    """
    if not bounds or bounds[0] != 0 or bounds[-1] != tokens:
        ends = f"{bounds[0]} to {bounds[-1]}" if bounds else "nothing"
        raise KernelError("cu-seqlens-range", f"{name} must go from 0 to the number of tokens, {tokens}; got {ends}")
    lengths = [past - first for first, past in zip(bounds, bounds[1:], strict=False)]
    falls = next((number for number, length in enumerate(lengths) if length < 0), None)
    if falls is not None:
        raise KernelError(
            "cu-seqlens-decrease",
            f"{name} must not decrease, got {bounds[falls]} and then {bounds[falls + 1]} at {falls + 1}",
        )
    return tuple(filter(None, lengths))


def _text_in_graph(text: str, bounds: tuple[int, ...], tokens: int) -> str:
    return remember(_documents(text, bounds, tokens))


# What torch.compiler.assume_constant_result does, without its second of imports: a graph keeps the answer.
_text_in_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]
