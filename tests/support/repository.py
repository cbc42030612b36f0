"""Where the repository lies, for tests of what is in it beside the library."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
SUPPORT = Path(__file__).parent


def docs_page(name: str) -> Path:
    """The page of docs/ of this name, in whichever folder."""
    (found,) = DOCS.rglob(name)
    return found
