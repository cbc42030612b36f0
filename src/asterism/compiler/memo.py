"""A cache that computes each value once, also when threads ask at the same time.

`functools.lru_cache` calls its function once for each thread that meets a new argument, and all but the last of the
results are soon nobody's. Here the second thread waits for the first.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Event, Lock
from typing import Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Memo(Generic[Arguments, Result]):
    """A function of hashable positional arguments that remembers its latest `size` results, and of older ones as many
    as keep all of them within `budget`, by what `weigh` says of each.

    A call that raises leaves nothing behind; the threads that waited for it compute anew.
    """

    def __init__(
        self, function: Callable[Arguments, Result], size: int, weigh: Callable[[Result], int] | None, budget: int
    ) -> None:
        self.function, self.size, self.weigh, self.budget = function, size, weigh, budget
        self.__doc__ = function.__doc__
        self._start()
        os.register_at_fork(after_in_child=self._start)  # the child has none of the threads that its parent waits for

    def _start(self) -> None:
        self.lock = Lock()
        self.results: OrderedDict[Hashable, Result] = OrderedDict()
        self.weight = 0
        self.running: dict[Hashable, Event] = {}

    def __call__(self, *arguments: Arguments.args, **_: Arguments.kwargs) -> Result:
        """The function's result for positional arguments."""
        while True:
            with self.lock:
                if arguments in self.results:
                    self.results.move_to_end(arguments)
                    return self.results[arguments]
                running = self.running.get(arguments)
                if running is None:
                    self.running[arguments] = Event()
                    break
            running.wait()
        try:
            result = self.function(*arguments)  # type: ignore[call-arg]  # no keywords, by the contract above
            with self.lock:
                self.results[arguments] = result
                self.weight += self._weight_of(result)
                while len(self.results) > self.size and self.weight > self.budget:
                    self.weight -= self._weight_of(self.results.popitem(last=False)[1])
        finally:
            with self.lock:
                self.running.pop(arguments).set()
        return result

    def _weight_of(self, result: Result) -> int:
        return 1 if self.weigh is None else self.weigh(result)

    def cache_clear(self) -> None:
        """Forget all results."""
        with self.lock:
            self.results.clear()
            self.weight = 0


def remembering(
    size: int, weigh: Callable[[Result], int] | None = None, budget: int = 0
) -> Callable[[Callable[Arguments, Result]], Memo[Arguments, Result]]:
    """Make a function a Memo of that size and budget."""
    return lambda function: Memo(function, size, weigh, budget)
