"""The price of attention by each implementation on this machine, and its speed at matrix products.

The first of these answers: prices that are pinned, as those of a run are; figures that `asterism bench --calibrate`
measured on this machine and kept (`figures.py`); figures that come with the library for this class of processor and
number of threads. Only a machine that the library has no figures for is measured unasked: once, in about two seconds,
before the first call that is long enough to be worth it, or a run. Until then the nearest figures of the library serve.

Invariant: figures are read once in a process and change only when it calibrates, and what is measured at need decides
only the calls that are worth it. So equal questions have one answer in a process: in all its threads, on a busy
machine, with gradients and without. A forked child answers as its parent did, and measures nothing. With
ASTERISM_CALIBRATE=0 nothing is measured, and only the figures of the library count.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import torch

from asterism.compiler.cost import Curve, Prices, Processor, has_figures, shipped, shipped_matrix_rates
from asterism.kernels.choice.figures import Figures, alone, keep, stored
from asterism.kernels.choice.measure import DTYPES, time_attention, time_products, time_two_products
from asterism.kernels.cpu import is_available
from asterism.kernels.cpu.processor import price_class

_AT_NEED, _IN_FULL = 1.8, 4.0
"""Seconds for a dtype and direction: of the ways that a call chooses from, and of all ways when calibrating."""

_IMPORTED_BY = os.getpid()

_log = logging.getLogger("asterism")


class Cell(NamedTuple):
    """What prices are for; the kernel of tiles must be among them. Devices but the CPU have those of the library."""

    dtype: str
    training: bool
    tiles: str
    device: str = "cpu"

    @property
    def direction(self) -> str:
        return "training" if self.training else "forward"


@dataclass(frozen=True, eq=False)
class PriceList:
    """Prices for one dtype and direction; equal to no other list, so that decisions may be kept by it.

    is_guess  whether they are those of a lesser kind of machine, and this one can be measured
    """

    prices: Prices
    is_guess: bool = False


class Rates(NamedTuple):
    """FLOP/s of matrix products by dtype, and whether they were measured here or come with the library."""

    by_dtype: Mapping[str, float]
    measured: bool


class _Machine:
    """The CPU of this machine as a process sees it, by figures that were measured here, or those of the library.

    The number of threads is read once: later threads may have been told another.
    """

    def __init__(self, figures: Figures | None = None) -> None:
        self.processor = Processor(price_class(), torch.get_num_threads())
        self.is_switched_off = os.environ.get("ASTERISM_CALIBRATE") == "0"
        self.figures = self._kept() if figures is None else figures
        self.lists: dict[Cell, PriceList] = {}
        self.measured: dict[Cell, PriceList] = {}
        self.lock = Lock()

    def _kept(self) -> Figures:
        found = Figures(), ""
        if not self.is_switched_off:
            found = stored(self.processor.threads)
        if found[1]:
            _log.warning("what was measured on this machine before is not used: %s", found[1])
        return found[0]

    @property
    def may_measure(self) -> bool:
        """A forked child may not: it has none of the threads that PyTorch computes with."""
        return not self.is_switched_off and os.getpid() == _IMPORTED_BY

    def known(self, cell: Cell) -> PriceList:
        if cell not in self.lists:
            self.lists.setdefault(cell, self._listed(cell))
        return self.lists[cell]

    def _listed(self, cell: Cell) -> PriceList:
        if cell.device != "cpu":
            return PriceList(shipped("cuda" if cell.device == "cuda" else "cpu", cell.dtype, cell.training))
        prices = self.figures.prices(cell.dtype, cell.direction)
        if cell.tiles in prices:
            return PriceList(prices)
        is_guess = cell.dtype in DTYPES and not has_figures(self.processor)
        return PriceList(shipped("cpu", cell.dtype, cell.training, self.processor), is_guess)

    def better(self, cell: Cell) -> PriceList:
        """The known list, or what is measured in its stead where it is a guess: at most once, while others wait."""
        if self.known(cell).is_guess and cell not in self.measured and self.may_measure:
            with self.lock:
                if cell not in self.measured:
                    prices = self._measure(cell).prices(cell.dtype, cell.direction)
                    self.measured[cell] = PriceList(prices)
        return self.measured.get(cell, self.known(cell))

    def _measure(self, cell: Cell) -> Figures:
        def add(figures: Figures) -> Figures:
            points = time_attention(cell.dtype, cell.training, self.processor.threads, [cell.tiles], _AT_NEED)
            return figures.with_prices(cell.dtype, cell.direction, points)

        what = f"attention in {cell.dtype}, {cell.direction}"
        return self._add_once(what, lambda one: cell.tiles in one.prices(cell.dtype, cell.direction), add)

    def rates(self) -> Mapping[str, float]:
        """FLOP/s of matrix products by dtype."""
        if not self.figures.matrix_rates and not has_figures(self.processor) and self.may_measure:
            with self.lock:
                if not self.figures.matrix_rates:
                    found = self._add_once(
                        "matrix products",
                        lambda figures: bool(figures.matrix_rates),
                        lambda figures: replace(figures, matrix_rates=time_products(self.processor.threads)),
                    )
                    self.figures = replace(self.figures, matrix_rates=found.matrix_rates)
        return self.figures.matrix_rates or shipped_matrix_rates(self.processor)

    def _add_once(self, what: str, has: Callable[[Figures], bool], add: Callable[[Figures], Figures]) -> Figures:
        """The figures that are kept, once another process or this one has measured what they lacked.

        It is measured in a thread of its own, where nothing holds that the caller may have on: autocast, transforms,
        hooks on what is saved for gradients.
        """
        threads = self.processor.threads
        with alone():
            figures = stored(threads).figures
            if has(figures):
                return figures
            _log.warning("measuring this machine's speed at %s, once; ASTERISM_CALIBRATE=0 switches it off", what)
            with ThreadPoolExecutor(1, thread_name_prefix="calibration") as pool:
                figures = pool.submit(add, figures).result()
            try:
                keep(threads, figures)
            except OSError as error:
                _log.warning("what was measured cannot be kept, and serves this process alone: %s", error)
        return figures


_machine: _Machine | None = None
_pin: _Machine | None = None


def this_machine() -> _Machine:
    """What this process knows of its machine, read when it is first asked for."""
    global _machine
    if _machine is None:
        _machine = _Machine()
    return _machine


def known_prices(cell: Cell) -> PriceList:
    """The prices that are known without measuring."""
    return (_pin or this_machine()).known(cell)


def measured_prices(cell: Cell) -> PriceList:
    """The same, measured first where they are a guess and this process may measure; pinned ones are none."""
    return _pin.known(cell) if _pin else this_machine().better(cell)


def prices_for(dtype: str) -> Mapping[str, Any]:
    """The prices of a dtype in both directions, for `pinned`; none of float64."""
    if dtype not in DTYPES:
        return {}
    cells = [Cell(dtype, training, "cpu" if is_available() else "eager") for training in (False, True)]
    prices = {cell.direction: measured_prices(cell).prices for cell in cells}
    return {dtype: {side: {way: _as_points(curve) for way, curve in ways.items()} for side, ways in prices.items()}}


def _as_points(curve: Curve) -> list[list[float]]:
    """The points of a curve that was measured; two of a line that came with the library, farther apart than calls."""
    if curve.points[0][0] > 0:
        return [list(point) for point in curve.points]
    return [[pairs, curve.at(pairs)] for pairs in (1.0, 2.0**50)]


@contextmanager
def pinned(nanoseconds: Mapping[str, Any]) -> Iterator[None]:
    """Within the body, choices follow these prices (`Figures.nanoseconds`), those of the library where they have none.

    Raises ValueError or TypeError for what are no prices.
    """
    global _pin
    before, _pin = _pin, _Machine(Figures(nanoseconds=nanoseconds))
    try:
        yield
    finally:
        _pin = before


def calibrate() -> Figures:
    """Measure everything on this machine, and go by it in this process; `figures.keep` keeps it for others."""
    global _machine
    threads = this_machine().processor.threads
    tiles = ["cpu", "eager"] if is_available() else ["eager"]
    with alone():
        figures = Figures(time_products(threads))
        for dtype in DTYPES:
            for direction in ("forward", "training"):
                points = time_attention(dtype, direction == "training", threads, tiles, _IN_FULL)
                figures = figures.with_prices(dtype, direction, points)
    _machine = _Machine(figures)
    return figures


def matrix_rates() -> dict[str, float]:
    """FLOP/s of matrix products on the CPU: {"float32": ..., "bfloat16": ...}.

    Those measured on this machine, or else those of the library. A machine that the library has none for is measured
    once, in about a second, on products as a training step has them.
    """
    return dict(this_machine().rates())


def expected_rates() -> Rates:
    """`matrix_rates` for somebody who wants to know how long work will take here and now.

    Where nothing was measured two small products are, and not kept: how busy the machine is, is part of the answer.
    """
    machine = this_machine()
    if machine.figures.matrix_rates or not machine.may_measure:
        return Rates(matrix_rates(), bool(machine.figures.matrix_rates))
    return Rates(time_two_products(machine.processor.threads), True)
