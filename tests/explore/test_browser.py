"""The page in Chromium: how fast it draws, what it says of wrong texts, links, keys, colours, and what it never does.

Run by `make browser-check`. CHROMIUM names the browser; SCREENSHOTS a folder to keep pictures in.
"""

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from explore_texts import random_texts

from asterism.explore.gallery import GALLERY

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright
except ImportError:
    MISSING: str | None = "playwright and axe-playwright-python are not installed: make browser-check installs them"
else:
    MISSING = None if CHROMIUM.exists() else f"there is no Chromium at {CHROMIUM}: set CHROMIUM"

pytestmark = [pytest.mark.browser, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=CHROMIUM, headless=True, args=SWITCHES
        )
        yield context
        context.close()


@pytest.fixture
def page(browser, served):
    """A page that may complain of nothing, and ask nobody but the server."""
    opened = browser.new_page()
    opened.set_default_timeout(15_000)
    opened.set_viewport_size({"width": 1280, "height": 900})
    complaints, strangers = [], []
    opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
    opened.on("request", lambda request: strangers.append(request.url))
    yield opened
    opened.close()
    assert complaints == []
    assert [url for url in strangers if not url.startswith((served.address, "blob:", "data:"))] == []
    assert served.errors.read_text() == ""


def until(page, condition, seconds=10.0):
    """Waits until a condition holds. Playwright's own wait evaluates text within the page, which its policy forbids."""
    begun = time.perf_counter()
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.perf_counter() - begun < seconds, condition
        time.sleep(0.02)


def go(page, served, fragment="", ready=True):
    page.goto(f"{served.address}#{fragment}")
    if ready:
        until(page, "document.querySelector('.panel canvas')?.dataset.text")


# Milliseconds from the input event to the picture of this text at this length.
TYPE = """([text, length]) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error("no picture within ten seconds")), 10000);
  const input = document.getElementById("text-A"), canvas = document.querySelector(".panel canvas");
  const begun = performance.now();
  const look = () => canvas.dataset.text === text && canvas.dataset.length === String(length)
    ? requestAnimationFrame(() => resolve(performance.now() - begun)) : setTimeout(look, 2);
  input.value = text;
  input.dispatchEvent(new Event("input"));
  look();
})"""

TYPED = (
    "bigbird(seed=5)",
    "fixed(stride=128, summary=8)",
    "strided(128)",
    "longformer()",
    "sinks()",
    "window(left=255) | stride(64)",
)


@pytest.mark.parametrize(("length", "milliseconds"), ((4096, 200), (2**20, 1000)))
def test_a_typed_pattern_changes_the_picture_in_time(page, served, length, milliseconds):
    """The median of six patterns, none of which was asked for before; other work on the machine may slow one."""
    go(page, served, f"n={length}")
    page.wait_for_timeout(4000)  # until the finer pictures of the first pattern are there
    took = []
    for text in TYPED:
        took.append(page.evaluate(TYPE, [text, length]))
        page.wait_for_timeout(1200)
    print(f"{length:,} tokens: {', '.join(f'{one:.0f}' for one in took)} ms")
    assert sorted(took)[len(took) // 2] < milliseconds


def test_wrong_text_gives_the_parsers_line_in_place(page, served):
    go(page, served)
    page.fill("#text-A", "causal() | window(lft=3)")
    page.wait_for_selector("#text-A[aria-invalid=true]")
    assert page.inner_text("#refused-A") == "window has no argument 'lft'. Did you mean 'left'?"
    assert page.inner_text(".panel .place mark") == "lft"
    page.fill("#text-A", "causal() | window(left=3)")
    page.wait_for_selector("#text-A:not([aria-invalid])")
    assert page.inner_text("#refused-A") == ""


def test_completion_by_keys(page, served):
    go(page, served)
    page.fill("#text-A", "")
    page.type("#text-A", "causal() | win")
    page.wait_for_selector("#completions-A li")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#text-A") == "causal() | window("
    assert page.inner_text("#completions-A li:first-child code") == "left=0"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type("5)")
    until(page, "document.querySelector('.panel canvas').dataset.text === 'causal() | window(left=5)'")
    page.keyboard.type(" | s")
    page.wait_for_selector("#completions-A li")
    page.keyboard.press("Escape")
    assert page.get_attribute("#text-A", "aria-expanded") == "false"


STATE = {
    "a": "interleave(window(left=3), fixed(8, heads=2))", "b": "causal()", "n": "512", "layerA": "1", "headA": "1",
    "view": "100,120,64", "theme": "dark", "open": "cost proof", "heads": "4", "dtype": "bfloat16",
    "direction": "training", "proof": "32", "shown": "Hamiltonian path",
}  # fmt: skip


def test_links_restore_everything(page, served):
    fragment = "&".join(f"{name}={quote(value)}" for name, value in STATE.items())
    go(page, served, fragment)
    page.wait_for_timeout(1500)
    seen = {
        "a": page.input_value("#text-A"), "b": page.input_value("#text-B"), "n": page.input_value("#length"),
        "layerA": page.input_value(".layer >> nth=0"), "headA": page.input_value(".head >> nth=0"),
        "theme": page.get_attribute("html", "data-theme"), "heads": page.input_value("#heads"),
        "dtype": page.input_value("#dtype"), "direction": page.input_value("#direction"),
        "proof": page.input_value("#proof-length"), "shown": page.input_value("#conditions input:checked"),
    }  # fmt: skip
    assert seen == {name: STATE[name] for name in seen}
    assert page.evaluate("['cost', 'proof', 'gallery'].map((id) => document.getElementById(id).open)") == [
        True,
        True,
        False,
    ]
    told = dict(part.split("=") for part in page.evaluate("location.hash").lstrip("#").split("&"))
    assert set(told) == set(STATE)
    assert told["view"] == quote(STATE["view"])
    page.fill("#text-A", "causal()")
    until(page, "location.hash.includes('a=causal')")
    page.evaluate("location.hash = '#a=star()&n=64'")
    until(page, "document.querySelector('.panel canvas').dataset.text === 'star()'")
    assert page.input_value("#length") == "64" and not page.is_visible("#text-B")


def test_zoom_and_pan_by_keys_wheel_and_drag(page, served):
    go(page, served, "n=1048576&a=causal()")
    view = "new URLSearchParams(location.hash.slice(1)).get('view')"
    canvas = page.locator(".panel canvas").first
    canvas.focus()
    for _ in range(14):
        page.keyboard.press("+")
    page.keyboard.press("ArrowDown")
    until(page, f"{view} !== null")
    page.wait_for_timeout(400)
    q, k, side = (int(part) for part in page.evaluate(view).split(","))
    assert side == 64 and q == k + 8
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    until(page, "document.querySelector('.readout').textContent.startsWith('query ')")
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 300)
    page.mouse.up()
    page.wait_for_timeout(400)
    assert int(page.evaluate(view).split(",")[1]) > k
    page.mouse.wheel(0, -500)
    page.wait_for_timeout(400)
    assert int(page.evaluate(view).split(",")[2]) < 64
    canvas.focus()
    page.keyboard.press("0")
    until(page, f"{view} === null")


def test_cost_certificate_and_reach(page, served):
    go(page, served, "a=star() | window(1, 1)&n=256&open=cost proof&proof=64".replace(" ", "%20"))
    page.wait_for_selector("#cost .verdict", timeout=60_000)
    assert "Tiles are" in page.inner_text("#cost .verdict")
    assert "not measured on this machine" in page.inner_text("#cost-out")
    until(page, "document.getElementById('proof-mask').dataset.marks === '2'")
    page.check("#conditions input[value='Hamiltonian path']")
    until(page, "document.getElementById('proof-mask').dataset.marks === '63'")
    page.click("#step")
    page.click("#step")
    assert page.inner_text("#reach-out").startswith("1 of 2: ")
    page.click("#play")
    until(page, "document.getElementById('reach-out').textContent.startsWith('2 of 2: 100')")
    until(page, "document.getElementById('play').textContent === 'Play'")


def test_the_gallery_fills_both_panels(page, served):
    go(page, served, "open=gallery")
    page.wait_for_selector(".cards li")
    assert page.locator(".cards li").count() == len(GALLERY)
    page.click("[aria-label='Show: gpt-oss']")
    until(page, "document.querySelector('.panel canvas').dataset.text.startsWith('interleave(window(left=127)')")
    page.click("[aria-label='Compare: Longformer']")
    until(page, "document.querySelectorAll('.panel canvas')[1].dataset.text === 'longformer()'")
    assert page.input_value("#length") == "4096"


def test_saving(page, served, tmp_path):
    go(page, served, "a=fixed(8)&n=64")
    page.wait_for_timeout(800)
    for kind, begins in (("svg", b"<svg xmlns"), ("png", b"\x89PNG"), ("python", b"from asterism")):
        with page.expect_download() as download:
            page.click(f".panel .{kind}")
        content = Path(download.value.path()).read_bytes()
        assert content.startswith(begins)
        (tmp_path / download.value.suggested_filename).write_bytes(content)
    assert b"fixed(stride=8), 64 tokens" in (tmp_path / "mask.svg").read_bytes()


HEAVY = {
    "n = 0": ("length", "0", "tokens must be a whole number"),
    "n = 10^12": ("length", "1000000000000", "tokens must be a whole number"),
    "a million characters": ("text-A", "a" * 10**6, "1,000,000 characters"),
    "deep nesting": ("text-A", "(" * 5000, "cannot be read as a pattern"),
}


@pytest.mark.parametrize("name", HEAVY)
def test_too_much_is_refused_in_place_within_a_second(page, served, name):
    field, value, message = HEAVY[name]
    go(page, served)
    begun = time.perf_counter()
    page.evaluate(
        "([field, value]) => { const input = document.getElementById(field); input.value = value;"
        " input.dispatchEvent(new Event('input')); }",
        [field, value],
    )
    place = "#trouble" if field == "length" else "#refused-A"
    until(page, f"document.querySelector('{place}').textContent.includes({json.dumps(message)})")
    assert time.perf_counter() - begun < 1


def test_a_thousand_random_texts_leave_no_exception(page, served):
    """Typed faster than they are answered, as by hand; every fiftieth is waited for."""
    go(page, served, "n=64&open=proof&proof=16")
    replies = []
    page.on("response", lambda response: replies.append(response))
    for number, text in enumerate(random_texts(1000, seed=27)):
        page.evaluate(
            "(text) => { const input = document.getElementById('text-A'); input.value = text;"
            " input.dispatchEvent(new Event('input')); }",
            text,
        )
        if number % 50 == 49:
            page.wait_for_timeout(700)
        else:
            page.wait_for_timeout(15)
    page.fill("#text-A", "causal()")
    until(page, "document.querySelector('.panel canvas').dataset.text === 'causal()'")
    assert len(replies) > 300 and {reply.status for reply in replies} == {200}
    codes = [reply.json().get("refused", {}).get("code") for reply in replies if reply.url.endswith("/ask")]
    assert "defect" not in codes and "worker-ended" not in codes


SHOTS = {
    "first": "", "two": "b=longformer()&n=65536&open=cost",
    "proof": "a=interleave(blocks(8), columns(8))&n=256&open=proof",
    "refused": "a=wndow(left=3)&open=gallery keys",
}  # fmt: skip


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("width", (1280, 400))
@pytest.mark.parametrize("name", SHOTS)
def test_accessibility_and_screenshots(page, served, tmp_path, name, width, scheme):
    """axe finds nothing serious, and nothing is wider than the window."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    go(page, served, quote(SHOTS[name], safe="=&()"), ready=name != "refused")
    page.wait_for_timeout(3500)
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(
        [[one["id"], [node["html"][:200] for node in one["nodes"]]] for one in serious], indent=1
    )
