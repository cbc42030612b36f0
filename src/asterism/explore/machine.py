"""What attention costs on this machine, by the figures that `auto` chooses by, as plain values."""

from typing import Any

_DTYPES = ("float32", "bfloat16")


def machine() -> dict[str, Any]:
    """The processor, and for each dtype and direction the price of every way and where it comes from.

    `source` is "measured" for figures that were measured on this machine, "shipped" for those that come with the
    library for this class of processor, and "lesser" for those of a lesser class. Nothing is measured.
    """
    # Torch takes seconds to import, so only the worker that answers this loads it.
    from asterism.kernels.choice.prices import Cell, known_prices, this_machine
    from asterism.kernels.cpu import is_available

    here = this_machine()
    tiles = "cpu" if is_available() else "eager"
    prices: dict[str, dict[str, Any]] = {dtype: {} for dtype in _DTYPES}
    for dtype in _DTYPES:
        for cell in (Cell(dtype, training, tiles) for training in (False, True)):
            found = known_prices(cell)
            is_measured = tiles in here.figures.prices(dtype, cell.direction)
            prices[dtype][cell.direction] = {
                "source": "measured" if is_measured else "lesser" if found.is_guess else "shipped",
                "ways": {way: {"points": curve.points, "pair": curve.pair} for way, curve in found.prices.items()},
            }
    return {"processor": here.processor.kind, "threads": here.processor.threads, "tiles": tiles, "prices": prices}
