"""Which pattern a task deserves at equal cost: small models, trained and compared by successive halving.

The settings, records and plots of searches load no torch.
"""

from typing import TYPE_CHECKING

from asterism.lazy import lazily
from asterism.search.plot import draw_frontier
from asterism.search.record import table
from asterism.search.settings import SearchSettings

if TYPE_CHECKING:
    from asterism.search.halving import search

__all__ = ["SearchSettings", "draw_frontier", "search", "table"]

__getattr__, __dir__ = lazily(__name__, {"search": "halving"}, eager=("SearchSettings", "draw_frontier", "table"))
