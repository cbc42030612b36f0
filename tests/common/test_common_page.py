"""The page of the common tests lists every test that fails, with its reason, and no other."""

from common_failures import rows
from repository import docs_page


def test_the_page_lists_the_failures() -> None:
    text = docs_page("common-tests.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("| ") and "`test_" in line] == rows()
