"""Rows, the positions of the tokens of a call: made once per call and passed to all layers."""

from asterism.layers.rows.find import find_rows, is_sharded, kept_rows, refuse_shifting, rows_of
from asterism.layers.rows.meeting import check_numbers, with_all_ranks, with_given
from asterism.layers.rows.rows import Rows

__all__ = [
    "Rows",
    "check_numbers",
    "find_rows",
    "is_sharded",
    "kept_rows",
    "refuse_shifting",
    "rows_of",
    "with_all_ranks",
    "with_given",
]
