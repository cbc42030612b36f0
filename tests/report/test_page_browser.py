"""Pages in Chromium: nothing is loaded, nothing complains, and keyboard, pointer and filters work.

With ASTERISM_SCREENSHOTS=FOLDER the pictures of the pages are kept there.
"""

import os
import shutil
from pathlib import Path

import pytest
from run_folders import causal, finished, tuned, write_lines, write_run

from asterism.report import describe_runs, make_page

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WIDTHS, SCHEMES = (1280, 400), ("light", "dark")
HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    playwright = pytest.importorskip("playwright.sync_api")
    if shutil.which(CHROMIUM) is None:
        pytest.skip("there is no Chromium: name it, CHROMIUM=PATH")
    with playwright.sync_playwright() as started:
        profile = tmp_path_factory.mktemp("profile")
        context = started.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, headless=True, args=list(QUIET)
        )
        yield context
        context.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [finished(folder / "first"), write_run(folder / "second", causal(seed=3, context=16)), _asked(folder)]
    write_lines(runs[0] / "samples.jsonl", [{"step": 20, "prompt": HOSTILE, "text": HOSTILE}])
    made = {"one": describe_runs(runs[:1]), "several": describe_runs(runs)}
    for name, described in made.items():
        (folder / f"{name}.html").write_text(make_page(described))
    return {name: folder / f"{name}.html" for name in made}


def _asked(folder):
    context = "long ago there was a coin . the coin is in the attic . and that was all"
    answers = [{"text": "attic", "answer_start": context.index("attic")}]
    records = [{"context": context, "question": HOSTILE, "answers": answers}] * 4
    data = write_lines(folder / "data.jsonl", records)
    made = []
    for number, said in enumerate(("attic", "coin", "", HOSTILE)):
        at = context.find(said) if said in ("attic", "coin") else None
        line = {"record": f"{data}, line {number + 1}", "read": [[28, 54]]}
        made.append({**line, "predicted_answer": said, "predicted_answer_start": at})
    return tuned(folder / "asked", "qa", data, made)


@pytest.fixture
def opened(browser):
    """Opens a page, and has seen what it asks for and complains of."""

    def opens(path, width=1280, scheme="light"):
        page = browser.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(path.as_uri())
        return page

    yield opens
    for page in browser.pages[1:]:
        page.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["one", "several"])
def test_a_page_is_quiet_fits_and_can_be_read_by_all(opened, pages, name, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(pages[name], width, scheme)
    assert page.requests == [pages[name].as_uri()] and page.complaints == []
    assert "taken" not in page.title()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    found = axe.Axe().run(page).response
    assert len(found["passes"]) > 15  # it has looked
    assert [(one["id"], one["impact"]) for one in found["violations"]] == []
    if folder := os.environ.get("ASTERISM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)


def test_the_browser_refuses_what_the_policy_does_not_name(opened, pages):
    """The policy works: a script that is added to the page does not run, and nothing is fetched."""
    page = opened(pages["one"])
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = 1'}))"
    )
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    page.wait_for_timeout(200)
    assert page.title() != "1" and any("Content Security Policy" in one for one in page.complaints)


def test_pointer_and_keys_show_values(opened, pages):
    page = opened(pages["one"])
    figure = page.locator("figure.chart", has_text="loss (nats)").first
    drawn = figure.locator("svg[id]")
    drawn.hover(position={"x": 200, "y": 100})
    assert "training" in figure.locator(".reading").text_content()
    drawn.press("End")
    last = figure.locator(".reading").text_content()
    drawn.press("ArrowLeft")
    assert last.startswith("step 40: training 1.98") and figure.locator(".reading").text_content() != last
    drawn.press("Home")
    assert figure.locator(".reading").text_content().startswith("step 10: ")


def test_axes_of_a_comparison_are_chosen(opened, pages):
    page = opened(pages["several"])
    group = page.locator("fieldset.switch").first
    for axis in ("step", "seconds", "FLOPs"):
        group.get_by_label(f"by {axis}").check()
        shown = [one.get_attribute("data-axis") for one in group.locator("figure").all() if one.is_visible()]
        assert shown == [axis]


def test_predictions_are_filtered(opened, pages):
    page = opened(pages["several"])
    group = page.locator("fieldset.filter")
    for which, count in (("all", 4), ("right", 1), ("wrong", 3)):
        group.get_by_label(which, exact=True).check()
        assert sum(one.is_visible() for one in group.locator("li").all()) == count
    assert page.locator("mark.answer").count() > 0 and page.locator(".unread").count() > 0
