"""How fast this machine is: measured once, in seconds, at first need, and kept beside the built kernel.

What was measured holds for a machine, a kernel, a version of PyTorch and a number of threads (`figures.py`). Until
then, and where nothing may be measured, figures of this machine for another number of threads answer, or else those
that come with the library for its class of processor. Invariant: one measurement at a time, none in a forked child,
none with ASTERISM_CALIBRATE=0, and none that is kept on a busy machine unless that is 1.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch

from asterism.compiler.cost import Curve, Prices, Processor, shipped, shipped_matrix_rates
from asterism.kernels.choice.figures import Figures, alone, keep, stored, stored_for_others
from asterism.kernels.choice.measure import ATTENTION_SECONDS, DTYPES, time_attention, time_products, time_two_products
from asterism.kernels.cpu import is_available
from asterism.kernels.cpu.processor import processor_class
from asterism.system import after_fork

Change = Callable[[Figures], Figures]
Found = TypeVar("Found")

_RENEWING = 4.0
"""Seconds for each dtype and direction when figures are renewed, with all ways to compute among them."""

_log = logging.getLogger("asterism")


class Cell(NamedTuple):
    """What prices are for."""

    dtype: str
    training: bool
    threads: int

    @property
    def direction(self) -> str:
        return "training" if self.training else "forward"


def is_switched_off() -> bool:
    """Whether ASTERISM_CALIBRATE=0 asks for the figures that come with the library, and no others."""
    return os.environ.get("ASTERISM_CALIBRATE") == "0"


def may_measure() -> bool:
    """Whether this process may measure at need: what is seen on a busy machine is how busy it is."""
    return not (is_switched_off() or _MACHINE.is_forked or (is_busy() and os.environ.get("ASTERISM_CALIBRATE") != "1"))


def is_busy() -> bool:
    """Whether more work waits for this machine's processors than they can do, on average over the last minute.

    False where the system does not tell.
    """
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) + 1


def matrix_rates() -> dict[str, float]:
    """FLOP/s of matrix products on the CPU with as many threads as PyTorch has now: {"float32": ..., "bfloat16": ...}.

    Measured once in about a second, on products as a training step has them, and kept. With ASTERISM_CALIBRATE=0, and
    in a forked child where nobody measured before, the figures that come with the library.
    """
    threads = torch.get_num_threads()
    if may_measure():
        what, measure = "matrix products", partial(_products, threads)
        return dict(_MACHINE.measured(what, threads, lambda one: bool(one.matrix_rates), measure).matrix_rates)
    return dict(_known_rates(threads)) or shipped_matrix_rates(_processor(threads))


class Rates(NamedTuple):
    """FLOP/s of matrix products by dtype, and whether they are this machine's or a guess from its class."""

    by_dtype: Mapping[str, float]
    measured: bool


def expected_rates() -> Rates:
    """`matrix_rates` for somebody who wants to know how long work will take here and now.

    Where nothing is known of this machine and it is too busy to be measured, two small products are, and not kept:
    how busy it is, is part of the answer.
    """
    rates, threads = matrix_rates(), torch.get_num_threads()
    if may_measure() or _known_rates(threads):
        return Rates(rates, True)
    if is_switched_off() or _MACHINE.is_forked:
        return Rates(rates, False)
    return Rates(_apart(partial(time_two_products, threads)), True)


def _known_rates(threads: int) -> Mapping[str, float]:
    return _MACHINE.known(threads).matrix_rates or _MACHINE.known_of_others(threads).matrix_rates


def _processor(threads: int) -> Processor:
    return Processor(processor_class(), threads)


def known_prices(cell: Cell, tiles: str) -> Prices:
    """What dense attention and that kernel of tiles cost, and perhaps others, as is known without measuring."""
    for figures in (_MACHINE.known, _MACHINE.known_of_others):
        prices = figures(cell.threads).prices(cell.dtype, cell.direction)
        if tiles in prices:
            return prices
    return shipped("cpu", cell.dtype, cell.training, _processor(cell.threads))


def measured_prices(cell: Cell, tiles: str) -> Prices:
    """The same, measured first if that is possible: the dtype must be one that the fused kernel takes."""
    if cell.dtype in DTYPES and may_measure() and _MACHINE.pin is None:

        def has(figures: Figures) -> bool:
            return tiles in figures.prices(cell.dtype, cell.direction)

        what = f"attention in {cell.dtype}, {cell.direction}"
        _MACHINE.measured(what, cell.threads, has, partial(_attention, cell, [tiles]))
    return known_prices(cell, tiles)


def epoch() -> int:
    """A number that grows when figures are renewed or pinned, and what was decided by others holds no longer."""
    return _MACHINE.epoch


def calibrate(threads: int) -> Figures:
    """Measure everything anew, for this process; `figures.keep` keeps it for others."""
    tiles = ["cpu", "eager"] if is_available() else ["eager"]
    cells = [Cell(dtype, training, threads) for dtype in DTYPES for training in (False, True)]
    attention = (partial(_attention, cell, tiles, _RENEWING) for cell in cells)
    return _MACHINE.renew(threads, [partial(_products, threads), *attention])


@contextmanager
def pinned(nanoseconds: Mapping[str, Any]) -> Iterator[None]:
    """Within the body, choices follow these prices (`Figures.nanoseconds`), those of the library where they have none.

    Raises ValueError or TypeError for what are no prices.
    """
    with _MACHINE.pinned(Figures(nanoseconds=nanoseconds)):
        yield


def prices_for(dtype: str) -> Mapping[str, Any]:
    """The prices of a dtype in both directions, measured if need be and allowed, for `pinned`; none of float64."""
    if dtype not in DTYPES:
        return {}
    threads, tiles = torch.get_num_threads(), "cpu" if is_available() else "eager"
    cells = [Cell(dtype, training, threads) for training in (False, True)]
    prices = {cell.direction: measured_prices(cell, tiles) for cell in cells}
    return {dtype: {side: {way: _as_points(curve) for way, curve in ways.items()} for side, ways in prices.items()}}


def _as_points(curve: Curve) -> list[list[float]]:
    """The points of a curve that was measured; two of a line that came with the library, farther apart than calls."""
    if curve.points[0][0] > 0:
        return [list(point) for point in curve.points]
    return [[pairs, curve.at(pairs)] for pairs in (1.0, 2.0**50)]


# --- what is known ---------------------------------------------------------------------------------------------------


class _Machine:
    """The figures of this process, by number of threads: read once, then measured or renewed."""

    def __init__(self) -> None:
        self.is_forked, self.epoch = False, 0
        self.pin: Figures | None = None
        self.figures: dict[int, Figures] = {}
        self.figures_of_others: dict[int, Figures] = {}
        self._make_locks()
        after_fork(self._go_on_in_child)

    def _make_locks(self) -> None:
        self.reading, self.measuring = Lock(), Lock()

    def _go_on_in_child(self) -> None:
        """A child has none of the threads that may hold the locks, nor those that PyTorch computes with."""
        self.is_forked = True
        self._make_locks()

    def known(self, threads: int) -> Figures:
        """What is known without measuring; what is pinned goes before."""
        if self.pin is not None:
            return self.pin
        return Figures() if is_switched_off() else self._own(threads)

    def known_of_others(self, threads: int) -> Figures:
        """What this machine is known to do with another number of threads, if nothing is pinned or switched off.

        Prices are as they are there: what decides is which way is cheaper. Rates are taken to grow with the threads.
        """
        if self.pin is not None or is_switched_off():
            return Figures()
        with self.reading:
            if threads not in self.figures_of_others:
                other, found = stored_for_others(threads)
                rates = {name: rate * threads / other for name, rate in found.matrix_rates.items()}
                self.figures_of_others[threads] = replace(found, matrix_rates=rates)
            return self.figures_of_others[threads]

    def _own(self, threads: int) -> Figures:
        with self.reading:
            if threads not in self.figures:
                found = stored(threads)
                if found.complaint:
                    _log.warning("what was measured on this machine before is not used: %s", found.complaint)
                self.figures[threads] = found.figures
            return self.figures[threads]

    def measured(
        self, what: str, threads: int, has: Callable[[Figures], bool], measure: Callable[[], Change]
    ) -> Figures:
        """Figures that have `what` is asked for: known ones, those of another process, or what `measure` gives."""
        if has(self._own(threads)):
            return self.figures[threads]
        with self.measuring, alone():
            if not has(self.figures[threads]):
                found = stored(threads).figures
                self.figures[threads] = found if has(found) else self._measure(what, threads, measure)
        return self.figures[threads]

    def _measure(self, what: str, threads: int, measure: Callable[[], Change]) -> Figures:
        """Where nothing can be kept, this process goes on with what it measured, and says so."""
        _log.warning("measuring this machine's speed at %s, once; ASTERISM_CALIBRATE=0 switches it off", what)
        change = _apart(measure)
        try:
            keep(threads, change)
        except OSError as error:
            _log.warning("what was measured on this machine cannot be kept, and serves this process alone: %s", error)
        return change(self.figures[threads])

    def renew(self, threads: int, measures: Sequence[Callable[[], Change]]) -> Figures:
        """Measure anew, and forget what was decided before."""
        figures = Figures()
        with self.measuring, alone():
            for measure in measures:
                figures = _apart(measure)(figures)
        self.figures[threads] = figures
        self.epoch += 1
        return figures

    @contextmanager
    def pinned(self, figures: Figures) -> Iterator[None]:
        """Within the body, these figures and no others."""
        before, self.pin = self.pin, figures
        self.epoch += 1
        try:
            yield
        finally:
            self.pin = before
            self.epoch += 1


_MACHINE = _Machine()


def _products(threads: int) -> Change:
    rates = time_products(threads)
    return lambda figures: replace(figures, matrix_rates=rates)


def _attention(cell: Cell, tiles: Sequence[str], seconds: float = ATTENTION_SECONDS) -> Change:
    points = time_attention(cell.dtype, cell.training, cell.threads, tiles, seconds)
    return lambda figures: figures.with_prices(cell.dtype, cell.direction, points)


def _apart(work: Callable[[], Found]) -> Found:
    """The result of `work` in a thread of its own.

    There nothing holds that a caller may have on: autocast, transforms, modes, hooks on what is saved for gradients.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="calibration") as pool:
        return pool.submit(work).result()
