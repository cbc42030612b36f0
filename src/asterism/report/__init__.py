"""Runs as one page: read from their folders without their models, drawn, and written as one HTML file.

    run folders --describe--> figures, the document of --json --page--> HTML that loads nothing

Nothing here imports torch, so a report takes a second or two. What belongs to a run that may be damaged, moved or
huge is read within bounds. A part that cannot be read is left out, and a sentence stands in its place.
"""

from asterism.report.compared import describe_runs
from asterism.report.page import LARGEST_PAGE, is_page, make_page

__all__ = ["LARGEST_PAGE", "describe_runs", "is_page", "make_page"]
