"""What pages may hold that GitHub shows and Python-Markdown does not: an extension of Python-Markdown.

- A link to a file of the repository that is not part of the site. On GitHub `[record](../../benchmarks/results/x.json)`
  leads to the file. On the site it becomes its text, with the path as a tooltip, and a picture becomes part of the
  page. A link to a file that does not exist is left as it is, so that the build refuses it.
- A pipe inside code inside a table, which both write as `\\|`; GitHub then shows the pipe alone.
"""

import base64
import mimetypes
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def outside(link: str) -> str | None:
    """The path in the repository of a file outside docs/ to which a page links, or None.

    Extensions of Python-Markdown do not learn which page they convert. So the steps up (`../`) are not counted: the
    rest must exist at the root of the repository, and must not exist in docs/.
    """
    path = link.partition("#")[0]
    if not path.startswith("../"):
        return None
    while path.startswith("../"):
        path = path.removeprefix("../")
    return path if path and (ROOT / path).exists() and not (DOCS / path).exists() else None


class _Mend(Treeprocessor):
    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            if path := outside(link.get("href", "")):
                link.tag = "span"
                link.attrib.pop("href")
                link.set("title", f"{path} in the repository")
                link.set("class", "outside")
        for image in root.iter("img"):
            if path := outside(image.get("src", "")):
                data = base64.b64encode((ROOT / path).read_bytes()).decode()
                image.set("src", f"data:{mimetypes.guess_type(path)[0]};base64,{data}")
        for row in root.iter("tr"):
            for code in row.iter("code"):
                code.text = AtomicString((code.text or "").replace(r"\|", "|"))


class SiteMarkdown(Extension):
    """The extension; it runs after text has become elements, and before the builder looks at links."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # the name is Python-Markdown's
        md.treeprocessors.register(_Mend(md), "site_markdown", 8)


def makeExtension(**options: object) -> SiteMarkdown:  # noqa: N802  # the name is Python-Markdown's
    return SiteMarkdown(**options)
