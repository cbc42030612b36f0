"""What is computed once and kept for the next time: one store for all of it, bounded in bytes.

Plans, their tables and masks, tensors of indices: each may be of any size, so their number says nothing of what they
take. The results that were asked for last stay, as many as fit into a share of the machine's memory.

Unlike with `functools.lru_cache`, a second thread that asks at the same time waits for the first: else each would get a
result of its own, and all but one of them would die while they are computed with.
"""

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from threading import Event, Lock, get_ident
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, TypeVarTuple

from asterism.memory import machine_memory
from asterism.system import after_fork

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Values = TypeVarTuple("Values")

_SHARE = 8
"""All that is kept takes at most one part in so many of the machine's memory."""

_ALWAYS = 4
"""So many of the latest results stay, whatever they weigh: a call needs its plan and the tables made of it."""


class _Computation(Event):
    """Is set when it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = get_ident()


class Store:
    """Results by what they are results of, the latest last; `weight` is how many bytes they and their keys take.

    `budget` is in bytes; by default a share of the machine's memory.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._start()
        after_fork(self._start)  # the child has none of the threads that its parent waits for

    def _start(self) -> None:
        self.lock = Lock()
        self.results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.weight = 0
        self.running: dict[Hashable, _Computation] = {}

    @property
    def budget(self) -> int:
        """How many bytes may be kept."""
        if self._budget is None:
            self._budget = machine_memory() // _SHARE
        return self._budget

    def get(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """The result for the key, which is computed where it is not there.

        A computation that raises leaves nothing behind; the threads that waited for it compute anew.
        """
        with self.lock:
            if key in self.results:
                return self._latest(key)
        own = _Computation()
        try:
            while True:
                with self.lock:
                    if key in self.results:
                        return self._latest(key)
                    running = self.running.get(key, own)
                    if running.is_set():  # it ended in an interrupt that kept it from being taken away
                        running = own
                    self.running[key] = running
                if running is own:
                    break
                if running.thread == own.thread:  # its own computation asks, or a signal's handler amid it
                    return compute()
                running.wait()
            with _usable_anywhere():
                result = compute()
            self._keep(key, result)
        finally:
            own.set()  # first, so that an interrupt from here on leaves nobody waiting
            with self.lock:
                if self.running.get(key) is own:
                    del self.running[key]
        return result

    def _latest(self, key: Hashable) -> Any:
        self.results.move_to_end(key)
        return self.results[key][0]

    def _keep(self, key: Hashable, result: Any) -> None:
        weight = weight_of((key, result))
        forgotten = []  # they die when the lock is free: nobody knows what else ends with them
        with self.lock:
            self.results[key] = result, weight
            self.weight += weight
            while self.weight > self.budget and len(self.results) > _ALWAYS:
                forgotten.append(self.results.popitem(last=False))
                self.weight -= forgotten[-1][1][1]

    def clear(self) -> None:
        """Forget all results."""
        with self.lock:
            forgotten, self.results, self.weight = self.results, OrderedDict(), 0
        forgotten.clear()


KEPT = Store()
"""What the library keeps."""


class Memo(Generic[*Values, Result]):
    """A function of hashable positional arguments whose results are kept in a store."""

    def __init__(self, function: Callable[[*Values], Result], store: Store) -> None:
        self.function, self.store = function, store
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: *Values) -> Result:
        """The function's result for these arguments."""
        found: Result = self.store.get((self.function, *arguments), functools.partial(self.function, *arguments))
        return found


def remembering(function: Callable[[*Values], Result], store: Store = KEPT) -> Memo[*Values, Result]:
    """Make a function a Memo: for results that hold arrays or long texts."""
    return Memo(function, store)


class Derives:
    """A value that never changes, such as a pattern or a plan, and of which tables are made: in another order, for a
    kernel, on a device.
    """

    def derived(
        self, make: Callable[Concatenate[Self, Arguments], Result], *others: Arguments.args, **_: Arguments.kwargs
    ) -> Result:
        """`make(self, *others)`, made once and kept as long as other results are: in the store, within its bound."""
        found: Result = KEPT.get((make, self, *others), functools.partial(make, self, *others))
        return found


class cached_property(functools.cached_property[Result]):  # a decorator, named as Python's
    """As `functools.cached_property`, and without the lock that it has in Python 3.11, one for all objects of a class:
    a child that was forked while another thread held it would wait for ever. Two threads may both compute the value.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        values = instance.__dict__
        if self.attrname not in values:
            with _usable_anywhere():
                values[self.attrname] = self.func(instance)
        return values[self.attrname]


_FEW: list[Any] = []


def remembering_few(size: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """`functools.lru_cache` of that size, for results of a few bytes: what torch.compile looks through."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        _FEW.append(functools.lru_cache(maxsize=size)(function))
        kept: Callable[Arguments, Result] = _FEW[-1]
        return kept

    return decorate


def clear_caches() -> None:
    """Free all that the library keeps to be faster the next time: plans, their tables, masks, parsed texts.

    Nothing changes but the time of the next calls. Results in use stay with those who use them.
    """
    KEPT.clear()
    for memo in _FEW:
        memo.cache_clear()


def weight_of(value: object) -> int:
    """About how many bytes a value takes, all that it is made of included; what occurs twice counts once."""
    weight, seen, open_ = 0, set(), [value]
    while open_:
        one = open_.pop()
        if id(one) in seen or callable(one):
            continue
        seen.add(id(one))
        weight += _OBJECT
        if isinstance(one, str | bytes):
            weight += len(one)
        elif isinstance(size := getattr(one, "nbytes", None), int):  # an array or a tensor
            weight += size
        elif isinstance(one, dict):
            open_ += [*one.keys(), *one.values()]
        elif isinstance(one, tuple | list) and len(one) > _MANY and isinstance(one[0], int):
            weight += len(one) * _OBJECT  # numbers, which would take long to be looked at
        elif isinstance(one, tuple | list | set | frozenset):
            open_ += one
        else:
            open_ += getattr(one, "__dict__", {}).values()
    return weight


_OBJECT = 64
"""What a Python object takes, roughly."""

_MANY = 1000


def _usable_anywhere() -> AbstractContextManager[object]:
    """Within it tensors are made as outside of `torch.inference_mode`: one made in it cannot be used for gradients."""
    torch = sys.modules.get("torch")  # which those who make no tensors do not import
    return nullcontext() if torch is None else torch.inference_mode(False)
