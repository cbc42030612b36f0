"""How much memory this machine has, and what would need more: known by arithmetic, before anything is built.

A size that no machine holds is a typing error or a stranger's file. Found out by allocating, it takes minutes and
gigabytes, and may end other programs.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    *("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"),
)
_WIDTHS = ("hidden_size", "d_model", "n_embd")
_EMBEDDINGS = (*_WIDTHS, "embedding_size")
_INNER_WIDTHS = ("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim")

_BYTES_OF_LAYER = 2**14
"""The Python objects of a layer, its tensors not counted: 30 to 40 kB were measured of BERT and of our blocks."""

_BYTES_OF_LABEL = 100
"""The name of a label, which a configuration keeps in two dictionaries."""


def machine_memory() -> int:
    """Bytes that this process can have at most: memory and swap, or the limit of its control group if that is less."""
    installed, swap = _installed()
    return min([installed + swap, *(limit + swap for limit in _group_limits())])


def shortage(needed: int, what: str, there: int | None = None) -> str | None:
    """Why `what`, which needs so many bytes, does not fit where so many are, by default this machine; None if it does.

    `what` begins the sentence, such as "the pattern".
    """
    there = machine_memory() if there is None else there
    if needed <= there:
        return None
    return f"{what} needs at least {amount(needed, 'B')} of memory, and there are {amount(there, 'B')}"


def least_model_memory(document: Mapping[str, object], bytes_of_number: int = 4) -> int:
    """Bytes that a model takes at least, by the sizes in its config.json under the names that transformers uses.

    Counted are one matrix for each layer, one embedding, an output for each label, and the objects that these are.
    What is no whole number counts as 0, so that any document can be asked about.
    """
    parts = [part for part in document.values() if isinstance(part, Mapping)]  # such as `text_config`
    return max(_least(document, bytes_of_number), sum(_least(part, bytes_of_number) for part in parts))


def heaviest_size(document: Mapping[str, object]) -> str:
    """The size in a model's config.json by which it needs most, such as "vocab_size=1,000,000"; "its sizes" if that is
    none of its own."""
    without = {
        f"{name}={value:,}": least_model_memory({**document, name: 1})
        for name, value in document.items()
        if isinstance(value, int) and value > 1
    }
    name = min(without, key=without.__getitem__, default="")
    return name if name and 2 * without[name] < least_model_memory(document) else "its sizes"


def least_token_memory(document: Mapping[str, object]) -> int:
    """Bytes that a model keeps of each token at least to compute gradients: one vector of hidden states a layer."""
    sizes = _sizes(document)
    return 4 * (sizes(*_LAYERS) + 1) * sizes(*_WIDTHS, choose=min)


def _least(document: Mapping[str, object], bytes_of_number: int) -> int:
    sizes = _sizes(document)
    layers, width, labels = sizes(*_LAYERS), sizes(*_WIDTHS, choose=min), sizes("num_labels")
    numbers = layers * width * width + width * (sizes(*_INNER_WIDTHS) + labels)
    numbers += (sizes("vocab_size") + sizes("type_vocab_size")) * sizes(*_EMBEDDINGS, choose=min)
    return numbers * bytes_of_number + layers * _BYTES_OF_LAYER + labels * _BYTES_OF_LABEL


def _sizes(document: Mapping[str, object]) -> Callable[..., int]:
    def of(*names: str, choose: Callable[[list[int]], int] = sum) -> int:
        """The sum of those that there are, or what is chosen of them; 0 of none."""
        values = [document[name] for name in names if name in document]
        return choose([value for value in values if isinstance(value, int) and value > 0] or [0])

    return of


def amount(value: float, unit: str) -> str:
    """A number with three digits and a prefix: 61440 FLOP is "61.4 kFLOP"."""
    prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]
    while value >= 999.5 and len(prefixes) > 1:
        value /= 1000
        del prefixes[0]
    return f"{value:.3g} {prefixes[0]}{unit}"


# --- what the system says --------------------------------------------------------------------------------------------


def _installed() -> tuple[int, int]:
    """Bytes of memory and of swap."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
        return found["MemTotal"], found["SwapTotal"]
    except (OSError, KeyError):  # not Linux: without its file, and with a swap file that grows
        if not hasattr(os, "sysconf"):
            return 2**63, 0  # not known, so nothing is refused
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0


def _group_limits() -> Iterator[int]:
    """The limits of the control groups that this process is in, of both versions of them; none where there are none."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = ("", "memory.max") if not controllers else ("memory", "memory.limit_in_bytes")
        folder = Path("/sys/fs/cgroup", root, path.lstrip("/"))
        for each in (folder, *folder.parents):
            try:
                limit = (each / name).read_text().strip()
            except OSError:
                continue  # a container sees its own group as the root, whatever path it is told
            if limit.isdigit():
                yield int(limit)
