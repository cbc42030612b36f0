"""The site: every page is in the navigation, links and anchors lead somewhere, questions of newcomers have answers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from page_blocks import PAGES
from repository import DOCS, ROOT

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

QUESTIONS = {
    "How do I make my Llama long?": "howto/huggingface.md#give-it-a-pattern",
    "Which pattern for which task?": "#which-pattern",
    "How fast is it on my machine?": "reference/verbs.md#bench",
    "Is it exact?": "architecture.md#two-paths-to-every-answer",
    "What about GPUs?": "architecture.md#kernels-the-numbers",
    "How do I cite it?": "#cite",
    "How do I resume a run elsewhere?": "howto/runs.md#move",
    "What does this error mean?": "reference/errors.md#what-common-messages-mean",
    "How do I write a kernel?": "architecture.md#how-to-add",
    "Can I use it with LoRA?": "howto/huggingface.md#use-it-with-lora",
}
"""What newcomers ask, and the page and section that answers: one click from the home page."""


def without_code(text: str) -> str:
    """A page without its fenced blocks and code in lines, which hold no links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "`code`", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings, as Python-Markdown names them, and the objects that it documents."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = (re.sub(r"[^\w\s-]", "", one).strip().lower() for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[-\s]+", "-", one) for one in headings} | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


def links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if not re.match(r"https?://|mailto:", link):
            yield link


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_and_anchors_lead_somewhere(page: Path):
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def in_navigation(part: object) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for inner in part.values() if isinstance(part, dict) else part:
            yield from in_navigation(inner)


def test_every_page_is_in_the_navigation_once():
    found = sorted(in_navigation(CONFIG["nav"]))
    assert found == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")), "see `nav` in mkdocs.yml"


def test_questions_of_newcomers_are_answered_one_click_from_home():
    home = DOCS / "index.md"
    asked = dict(re.findall(r"^\*\*(.+?\?)\*\* (.*?)(?=\n\n)", home.read_text(), re.MULTILINE | re.DOTALL))
    assert list(asked) == list(QUESTIONS)
    for question, target in QUESTIONS.items():
        assert f"]({target})" in asked[question], question
        path, _, anchor = target.partition("#")
        assert anchor in anchors(DOCS / path if path else home), question


def test_nothing_is_loaded_from_outside():
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    own = *CONFIG["extra"]["polyfills"], *CONFIG["extra_css"], *CONFIG["extra_javascript"], CONFIG["theme"]["favicon"]
    for path in own:
        assert (DOCS / path).exists()


def test_links_out_of_the_site_become_text(tmp_path):
    markdown = pytest.importorskip("markdown")
    import site_markdown

    def shown(text: str) -> str:
        return markdown.markdown(text, extensions=[site_markdown.SiteMarkdown(), "tables"])

    assert '<span class="outside" title="README.md in the repository">this</span>' in shown("[this](../../README.md)")
    assert 'href="../nowhere.md"' in shown("[this](../nowhere.md)")
    assert 'href="../architecture.md"' in shown("[this](../architecture.md)")
    assert "data:image/png;base64," in shown("![this](../../benchmarks/results/devices.png)")
    assert "<code>a | b</code>" in shown("| x |\n|---|\n| `a \\| b` |")
