"""Keep what `asterism reproduce` found: records go into the library, and the pages of the papers are written from them.

python benchmarks/papers.py runs/reproduce-*/record.json
"""

import sys
from pathlib import Path

from asterism.reproduce.kept import keep, write_pages
from asterism.reproduce.record import read_record

PAGES = Path(__file__).parent.parent / "docs" / "results" / "papers"


def main() -> None:
    for path in sys.argv[1:]:
        keep(read_record(Path(path)))
    print(*write_pages(PAGES), sep="\n")


if __name__ == "__main__":
    main()
