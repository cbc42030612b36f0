"""What ranks must have in common before rows of attention move, told in a few numbers at the start of each call.

A rank that was asked for something else would send rows that nobody waits for, and wait for rows that nobody sends. So
every rank says in 32 bytes what it was asked: a digest of it in words, and how many tokens it has. Only where digests
differ do the words follow. A rank whose own arguments are wrong says that, so that no other waits for it.

Why no order of calls can part the ranks: the numbers are exchanged in every call, by every rank. What a rank decides by
itself is only whether it reads them. On a CPU that is free, and it always does: all of them then see the same numbers
and go on, or say their words, together. On a GPU reading waits for all that was computed before. There, and only where
the group has no backend for the CPU, a rank reads where what it is asked is new to it in this group; otherwise the GPU
compares, and stops with an assertion where digests differ, before rows that do not fit are waited for. Whether a rank
reads is among the numbers: the words follow only where all ranks do.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from weakref import WeakKeyDictionary

import torch

from asterism.errors import AsterismError, ConfigurationError
from asterism.parallel.collectives import ProcessGroup, all_gather, meeting_device
from asterism.parallel.context import SequenceParallel
from asterism.patterns.intervals import Integers

_ROOM = 2**13
"""Bytes of a rank's words, at most; what is longer is cut."""

_LONGEST = 160
"""Characters of a word before it is shortened."""

_MOST_KNOWN = 2**12
"""Digests that are remembered of a group."""

_AGREED: WeakKeyDictionary[ProcessGroup, set[int]] = WeakKeyDictionary()
"""Digests on which all ranks of a group have agreed, where reading takes a GPU's time."""


class LostRankError(AsterismError, RuntimeError):
    """Another rank has ended, or has not come to a call within the time that the group waits."""


def agree(
    context: SequenceParallel,
    words: Mapping[str, str],
    tokens: tuple[int, int],
    device: torch.device | None,
    *,
    wants_tokens: bool,
    refusal: str = "",
) -> Integers | None:
    """int64 [ranks, 2]: how many tokens all ranks have; None where that was not wanted, and not read.

    `words` say by name what this rank was asked, `refusal` why it cannot go on. Raises ConfigurationError, which names
    the ranks and what differs, unless all give the same; LostRankError where one does not come.
    """
    said = "\0".join((refusal, *words.values())).encode(errors="replace")
    digest = int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little", signed=True)
    meeting = meeting_device(context.group, device)
    reads = wants_tokens or not _reading_waits(meeting) or digest not in _AGREED.get(context.group, ())
    own = torch.tensor([digest, reads, *tokens], dtype=torch.int64, device="cpu").to(meeting, non_blocking=True)
    with _together():
        told = all_gather(own, context.group)
    if not reads:
        torch._assert_async((told[:, 0] == own[0]).all(), "ranks of sequence_parallel asked for different attention")
        return None
    with _together():
        numbers: Integers = told.cpu().numpy()
    if (numbers[:, 0] == digest).all():
        _remember(context.group, meeting, digest)
        return numbers[:, 2:]
    if not numbers[:, 1].all():
        others = _ranks((numbers[:, 0] != digest).nonzero()[0].tolist())
        asked = "; ".join(f"{name} {word}" for name, word in words.items())
        raise ConfigurationError(
            "ranks-asked-differently",
            f"within sequence_parallel all ranks must ask the same of attention; {others} asked for something else than"
            f" rank {context.rank}, or could not go on. Rank {context.rank}: {asked}",
        )
    with _together():
        everyone = _said_by_all(context, said, meeting)
    raise ConfigurationError("ranks-asked-differently", _difference(list(words), everyone))


def refuse(context: SequenceParallel, error: Exception, device: torch.device | None) -> None:
    """Says to the ranks, which are about to `agree`, that this one cannot go on."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    with suppress(ConfigurationError, LostRankError):  # this rank has its own to say
        agree(context, {}, (0, 0), device, wants_tokens=True, refusal=line)


def in_words(value: object) -> str:
    """The value as other ranks are told it: what is long is shortened, and known by its digest."""
    text = str(value)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{text[:_LONGEST]}... ({len(text):,} characters, digest {digest})"


def _reading_waits(meeting: torch.device) -> bool:
    """Whether who reads numbers waits for all that was computed before them."""
    return meeting.type != "cpu"


@contextmanager
def _together() -> Iterator[None]:
    """What backends say of a rank that is missing, in one line."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(
            "rank-lost",
            "another rank of sequence_parallel has ended, or did not come to this call of attention in time:"
            f" {str(error).partition(chr(10))[0]}",
        ) from error


def _remember(group: ProcessGroup, meeting: torch.device, digest: int) -> None:
    """That all ranks agree on it, where that is not read each time."""
    if not _reading_waits(meeting):
        return
    agreed = _AGREED.setdefault(group, set())
    if len(agreed) >= _MOST_KNOWN:
        agreed.clear()
    agreed.add(digest)


def _said_by_all(context: SequenceParallel, said: bytes, meeting: torch.device) -> list[list[str]]:
    """The refusals and words of all ranks."""
    own = torch.frombuffer(bytearray(said[:_ROOM].ljust(_ROOM, b"\0")), dtype=torch.uint8).to(meeting)
    found = all_gather(own, context.group).cpu().numpy()
    return [one.tobytes().decode(errors="replace").rstrip("\0").split("\0") for one in found]


def _difference(names: Sequence[str], everyone: Sequence[Sequence[str]]) -> str:
    """Which ranks cannot go on, and why, or what differs between which."""
    refused = [rank for rank, said in enumerate(everyone) if said[0]]
    if refused:
        more = f" ({_ranks(refused[1:])} too, for reasons of their own)" if refused[1:] else ""
        return (
            f"rank {refused[0]} could not go on with a call of attention within sequence_parallel{more}, so no rank"
            f" does: {everyone[refused[0]][0]}"
        )
    differing = []
    for name, said in zip(names, [*zip_longest(*everyone, fillvalue="")][1:], strict=False):
        ranks_by_word: dict[str, list[int]] = {}
        for rank, word in enumerate(said):
            ranks_by_word.setdefault(word, []).append(rank)
        if len(ranks_by_word) > 1:
            differing.append(f"{name} {', '.join(f'{word} on {_ranks(on)}' for word, on in ranks_by_word.items())}")
    return (
        f"within sequence_parallel all ranks must ask the same of attention, and these differ: {'; '.join(differing)}"
    )


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
