"""What a model reads, on the page in Chromium: texts, layers, heads and queries; links, keys, refusals, colours.

Run by `make browser-check`, as test_browser.py, whose browser and helpers it uses.
"""

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import serving
from test_browser import MISSING, SWITCHES, CHROMIUM, until

if MISSING is None:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

pytestmark = [pytest.mark.browser, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
