"""The site as it is built: without a warning, by both builders, and complete where it is opened from the disk."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from repository import ROOT

pytestmark = pytest.mark.slow  # a build takes ten seconds and more

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def build(builder: str, folder: Path) -> Path:
    """The site, built strictly into a folder."""
    pytest.importorskip(builder)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "documentation"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", builder, "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("mkdocs", tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def zensical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("zensical", tmp_path_factory.mktemp("zensical"))


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def test_objects_and_pictures_are_on_the_pages(site: Path):
    attention = (site / "reference" / "attention.html").read_text()
    for name in ("asterism.kernels.attend.attend", "asterism.Terms", "asterism.compiler.Plan.describe"):
        assert f'id="{name}"' in attention
    assert (site / "reference" / "pictures" / "bigbird.svg").exists()


def test_zensical_builds_the_same_pages(site: Path, zensical: Path):
    assert {path.relative_to(site) for path in site.rglob("*.html")} == {
        path.relative_to(zensical) for path in zensical.rglob("*.html")
    }


def watched(browser, **options):
    """A page, the addresses that it asks for, and its complaints."""
    asked, complaints = [], []
    page = browser.new_context(**options).new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    return page, asked, complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_search_works_from_the_disk_and_nothing_is_loaded_from_outside(site, browser, scheme, width):
    page, asked, complaints = watched(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto((site / "index.html").as_uri())
    if width == 400:
        page.click("label.md-header__button[for=__search]")
    page.click("[data-md-component=search-query]")
    page.keyboard.type("gradient checkpointing")
    page.wait_for_selector(".md-search-result__item a")
    page.click(".md-search-result__item a")
    page.wait_for_load_state()
    assert page.url.startswith(site.as_uri()) and page.url != (site / "index.html").as_uri()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:", "about:"))] == []
    assert complaints == []
    page.context.close()


def test_search_works_from_the_disk_under_zensical(zensical: Path, browser):
    page, asked, complaints = watched(browser, viewport={"width": 1280, "height": 900})
    page.goto((zensical / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("gradient checkpointing")
    page.get_by_text(re.compile(r"^\d+ results$")).wait_for()
    assert [url for url in asked if not url.startswith((zensical.as_uri(), "data:", "blob:", "about:"))] == []
    assert complaints == []
    page.context.close()


def test_search_works_from_a_server(site: Path, browser):
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        page, asked, _ = watched(browser, viewport={"width": 1280, "height": 900})
        page.goto(f"{address}index.html")
        page.click("[data-md-component=search-query]")
        page.keyboard.type("gradient checkpointing")
        page.wait_for_selector(".md-search-result__item a")
        page.context.close()
        server.shutdown()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site: Path, browser, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = []
    for name in ("index", "tutorial", "reference/gallery", "reference/settings", "howto/huggingface"):
        page, _, _ = watched(browser, viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        page.goto((site / f"{name}.html").as_uri())
        for violation in axe.run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                found.append((name, violation["id"], violation["nodes"][0]["html"][:100]))
        page.context.close()
    assert found == []
