"""What a model reads, on the page in Chromium: texts, layers, heads and queries; links, keys, refusals, colours.

Run by `make browser-check`, as test_browser.py.
"""

import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import serving
from test_browser import MISSING, browser, until  # noqa: F401  # a fixture

if MISSING is None:
    from axe_playwright_python.sync_playwright import Axe

pytestmark = [pytest.mark.browser, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

TEXT = "def f(x):\n    return x + 1  # <b>&amp;\n" * 20
SHOWN = "document.getElementById('read-mask').dataset"


@pytest.fixture(scope="module")
def server(bytes_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    (folder / "text").write_text(TEXT)
    with serving(folder / "stderr", str(bytes_run), "--text", str(folder / "text")) as started:
        yield started


@pytest.fixture
def page(browser, server):  # noqa: F811
    """A page that may complain of nothing, and ask nobody but the server."""
    opened = browser.new_page()
    opened.set_default_timeout(30_000)
    opened.set_viewport_size({"width": 1280, "height": 900})
    complaints, strangers = [], []
    opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
    opened.on("request", lambda request: strangers.append(request.url))
    yield opened
    opened.close()
    assert complaints == []
    assert [url for url in strangers if not url.startswith((server.address, "blob:", "data:"))] == []
    assert server.errors.read_text() == ""


def go(page, server, fragment="", condition=f"{SHOWN}.reading"):
    page.goto(f"{server.address}#{fragment}")
    until(page, condition, seconds=120)


def state(page) -> dict[str, str]:
    return page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


def test_the_file_is_read_at_once_and_heads_and_keys_are_told(page, server):
    go(page, server)
    assert page.inner_text("#read-status") == f"{len(TEXT)} bytes, each by itself"
    until(page, "document.getElementById('read-keys').children.length")
    heads = page.locator("#read-heads tbody tr")
    assert heads.count() == 2
    assert page.locator("#read-heads th").all_inner_texts()[1] == "window(left=7)"
    page.select_option("#read-layer", "1")
    page.select_option("#read-head", "2")
    until(page, f"{SHOWN}.layer === '1' && {SHOWN}.head === '2'")
    assert page.locator("#read-heads th").all_inner_texts() == ["head", "distance", "spread"]
    assert page.get_attribute("#read-heads tr:nth-child(2)", "class") == "chosen"
    page.fill("#read-query", "41")
    until(page, "document.getElementById('read-keys').dataset.query === '41'")
    assert page.inner_text("#read-mine").splitlines()[-1] == TEXT[41]
    page.hover("#read-mask", position={"x": 60, "y": 300})
    until(page, "document.getElementById('read-readout').textContent.includes(' attention to key')")


def test_a_typed_text_and_a_link_restore_the_same(page, server):
    go(page, server)
    first = page.evaluate(f"{SHOWN}.reading")
    page.fill("#read-text", "the quick <i>brown</i> fox \u2603 & more")
    page.keyboard.press("Control+Enter")
    until(page, f"{SHOWN}.reading !== '{first}'")
    page.select_option("#read-layer", "1")
    page.fill("#read-query", "20")
    page.focus("#read-mask")
    page.keyboard.press("+")
    page.keyboard.press("ArrowUp")
    until(page, "location.hash.includes('viewM=') && location.hash.includes('query=20')")
    page.wait_for_timeout(500)
    told = state(page)
    assert (told["t"], told["layerM"]) == ("the quick <i>brown</i> fox \u2603 & more", "1")
    link, seen = page.url, page.evaluate(f"{SHOWN}.reading")
    page.goto("about:blank")
    page.goto(link)
    until(page, f"{SHOWN}.reading === '{seen}' && {SHOWN}.layer === '1'")
    page.wait_for_timeout(500)
    assert state(page) == told
    assert page.input_value("#read-query") == "20" and page.input_value("#read-text") == told["t"]
    page.focus("#read-mask")
    page.keyboard.press("0")
    until(page, "!location.hash.includes('viewM=')")


def test_a_click_chooses_the_query(page, server):
    go(page, server, f"t={quote('abcdefgh' * 8)}")
    box = page.locator("#read-mask").bounding_box()
    side = min(box["width"] - 54, box["height"] - 24) - 2
    page.mouse.click(box["x"] + 54 + side * 0.2, box["y"] + 24 + side * 10.5 / 64)
    until(page, "document.getElementById('read-keys').dataset.query === '10'")
    assert page.input_value("#read-query") == "10"
    with page.expect_download() as download:
        page.click("#read-svg")
    assert b"attention of layer 0, mean of all heads, 64 bytes" in Path(download.value.path()).read_bytes()


REFUSED = {
    "nothing": ("", "type a text"),
    "too many bytes": ("x" * 65_537, "has 65,537 bytes, but at most 65,536 can be read"),
    "too many characters": ("x" * 200_000, "has 200,000 characters, but at most 150,000 can be sent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_texts_are_refused_in_place(page, server, name):
    text, message = REFUSED[name]
    go(page, server)
    page.fill("#read-text", text)
    page.click("#read")
    until(page, f"document.getElementById('read-refused').textContent.includes({json.dumps(message)})")
    page.fill("#read-text", "abc")
    page.click("#read")
    until(page, "document.getElementById('read-status').textContent.startsWith('3 bytes')")
    assert page.inner_text("#read-refused") == ""


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\0\1\x1b[31m",
    "\u202eabc",
    "\ud83d",
    "a\u0301" * 50,
    "'\"`;--",
    "]]>{{7*7}}",
)


def test_hostile_texts_are_shown_as_text(page, server):
    go(page, server)
    for text in HOSTILE:
        page.evaluate("(text) => { document.getElementById('read-text').value = text; }", text)
        page.click("#read")
        until(page, "document.getElementById('read-status').textContent.includes('bytes')")
        page.wait_for_timeout(200)
        assert page.inner_text("#read-refused") == ""
    assert page.locator("#reading img").count() == 0


def test_without_a_model_the_section_is_not_there(browser, served):  # noqa: F811
    opened = browser.new_page()
    opened.goto(served.address)
    until(opened, "document.querySelector('.panel canvas')?.dataset.text")
    assert not opened.is_visible("#reading")
    opened.close()


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("width", (1280, 400))
def test_accessibility_and_screenshots(page, server, tmp_path, width, scheme):
    """axe finds nothing serious, and nothing is wider than the window."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    go(page, server, "file=1&query=300")
    until(page, "document.getElementById('read-keys').dataset.query === '300'")
    page.wait_for_timeout(2500)
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"reading-{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(
        [[one["id"], [node["html"][:200] for node in one["nodes"]]] for one in serious], indent=1
    )
