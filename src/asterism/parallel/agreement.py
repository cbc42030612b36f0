"""Checks that all ranks make the same call before they exchange rows, with a few numbers.

A rank that was asked for something else would send rows that nobody waits for, and wait for rows that nobody sends. So
before ranks exchange anything, every rank says in 32 bytes what it was asked: a digest of it in words, and two numbers.
Only where digests differ do the words follow. A rank that cannot go on says that, so that no other waits for it: at
once where a call of attention is by itself, and else where the others next agree, at the latest at the end of the call
that they make together (`one_call`), such as that of a model. Only of an error amid an exchange (`exchanging`) nobody
can be told.

Why no order of calls can part the ranks: the numbers are exchanged each time, by every rank, whatever is agreed on.
What a rank decides by itself is only whether it reads them. On a CPU that is free, and it always does: all of them then
see the same numbers and go on, or say their words, together. On a GPU reading waits for all that was computed before.
There, and only where the group has no backend for the CPU, a rank reads where what it is asked is new to it in this
group; otherwise the GPU compares, and stops with an assertion where digests differ, before rows that do not fit are
waited for. Whether a rank reads is among the numbers: the words follow only where all ranks do.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
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


@dataclass
class _SharedCall:
    """A call that ranks make together: what this one was asked, and whether an error in it need not, or cannot, be told
    to the others any more."""

    words: dict[str, str] = field(default_factory=dict)
    is_settled: bool = False


_CALL: ContextVar[_SharedCall | None] = ContextVar("call", default=None)


@contextmanager
def one_call(context: SequenceParallel, device: torch.device, words: Mapping[str, str]) -> Iterator[None]:
    """Around a call that ranks make together, such as that of a model; `words` say by name what this rank was asked.

    A rank that raises an error says so where the others next agree, and these raise ConfigurationError. At the end all
    agree that it is over. Within another such body it does nothing.
    """
    if _CALL.get() is not None:
        yield
        return
    call = _SharedCall(dict(words))
    token = _CALL.set(call)
    try:
        yield
        agree(context, {"call": "at its end"}, (0, 0), device, wants_numbers=False)
    except Exception as error:
        if not call.is_settled:
            _say_refusal(context, error, device)
        raise
    finally:
        _CALL.reset(token)


def words_of_call() -> dict[str, str]:
    """What this rank was asked in the call around, by name; nothing outside of one."""
    call = _CALL.get()
    return {} if call is None else call.words


def agree(
    context: SequenceParallel,
    words: Mapping[str, str],
    numbers: tuple[int, int],
    device: torch.device | None,
    *,
    wants_numbers: bool,
) -> Integers | None:
    """int64 [ranks, 2]: the numbers of all ranks, such as their tokens; None where these were not wanted, and not read.

    `words` say by name what this rank was asked. `device` is where tensors of the call lie. Raises ConfigurationError,
    which names the ranks and what differs, unless all give the same words; LostRankError where one does not come.
    """
    # Graphs of torch.compile end before it. Only what compiles has imported the compiler.
    untraced = torch.compiler.disable(_agree) if "torch._dynamo" in sys.modules else _agree
    try:
        return untraced(context, words, numbers, device, wants_numbers)
    except (ConfigurationError, LostRankError):
        _settle()
        raise


@contextmanager
def exchanging() -> Iterator[None]:
    """Around an exchange on which ranks have agreed. A rank that raises an error in it does so at once: the others are
    not where they could be told."""
    try:
        yield
    except Exception:
        _settle()
        raise


def refuse(context: SequenceParallel, error: Exception, device: torch.device | None) -> None:
    """Say to the ranks, which are about to `agree`, that this one cannot go on; `one_call` around does so itself."""
    if _CALL.get() is None:
        _say_refusal(context, error, device)


def _settle() -> None:
    """Whatever error ends the call around, the others are not told."""
    if (call := _CALL.get()) is not None:
        call.is_settled = True


def _say_refusal(context: SequenceParallel, error: Exception, device: torch.device | None) -> None:
    try:
        line = " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:  # an error that has no words
        line = type(error).__name__
    with suppress(ConfigurationError, LostRankError):  # this rank has its own to say
        _agree(context, {}, (0, 0), device, wants_numbers=True, refusal=line)


def _agree(
    context: SequenceParallel,
    words: Mapping[str, str],
    numbers: tuple[int, int],
    device: torch.device | None,
    wants_numbers: bool,
    refusal: str = "",
) -> Integers | None:
    said = "\0".join((refusal, *(f"{name}\1{word}" for name, word in words.items()))).encode(errors="replace")
    digest = int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little", signed=True)
    meeting = meeting_device(context.group, device)
    reads = wants_numbers or not _reading_waits(meeting) or digest not in _AGREED.get(context.group, ())
    own = torch.tensor([digest, reads, *numbers], dtype=torch.int64, device="cpu").to(meeting, non_blocking=True)
    with _nobody_lost():
        told = all_gather(own, context.group)
    if not reads:
        torch._assert_async((told[:, 0] == own[0]).all(), "ranks of sequence_parallel asked for different things")
        return None
    with _nobody_lost():
        found: Integers = told.cpu().numpy()
    if (found[:, 0] == digest).all():
        _remember(context.group, meeting, digest)
        return found[:, 2:]
    if not found[:, 1].all():
        others = _ranks((found[:, 0] != digest).nonzero()[0].tolist())
        asked = "; ".join(f"{name} {word}" for name, word in words.items())
        raise ConfigurationError(
            "ranks-asked-differently",
            f"within sequence_parallel all ranks must make the same call; {others} made a different call than rank"
            f" {context.rank}, or failed. Rank {context.rank}: {asked}",
        )
    with _nobody_lost():
        everyone = _said_by_all(context, said, meeting)
    if refused := [rank for rank, said in enumerate(everyone) if said[0]]:
        raise ConfigurationError("other-rank-refused", _refusal(refused, everyone[refused[0]][0]))
    raise ConfigurationError("ranks-asked-differently", _difference(everyone))


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
def _nobody_lost() -> Iterator[None]:
    """What backends say of a rank that is missing, in one line."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(
            "rank-lost",
            "another rank of sequence_parallel has ended, or did not make this call in time:"
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


def _refusal(refused: Sequence[int], cause: str) -> str:
    """Which ranks cannot go on, and why the first of them cannot."""
    more = f" ({_ranks(refused[1:])} too, for reasons of their own)" if refused[1:] else ""
    return f"rank {refused[0]} could not go on with a call within sequence_parallel{more}, so no rank does: {cause}"


def _difference(everyone: Sequence[Sequence[str]]) -> str:
    """What differs between which ranks, of which each has said "" and its words, as `_agree` lays them."""
    said = [dict(word.partition("\1")[::2] for word in words[1:]) for words in everyone]
    differing = []
    for name in dict.fromkeys(name for words in said for name in words):
        ranks_by_word: dict[str, list[int]] = {}
        for rank, words in enumerate(said):
            ranks_by_word.setdefault(words.get(name, "left out"), []).append(rank)
        if len(ranks_by_word) > 1:
            differing.append(f"{name} {', '.join(f'{word} on {_ranks(on)}' for word, on in ranks_by_word.items())}")
            if name == "call":
                break  # nothing else can be compared
    return f"within sequence_parallel all ranks must ask the same, and these differ: {'; '.join(differing)}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
