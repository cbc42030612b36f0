"""asterism doctor: what it reports, and that it fails where something needed is missing."""

import json
import re
from pathlib import Path

import pytest
from command_line import Run, refuses
from repository import ROOT

from asterism.cli import doctor, installed
from asterism.cli.installed import Requirement
from asterism.errors import KernelError
from asterism.kernels.cpu import build

(NEWEST,) = re.findall(r"^NEWEST := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
PINNED = dict(re.findall(r"^(torch|transformers)==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_report(run: Run):
    text, document = run("doctor"), json.loads(run("doctor", "--json").out)
    assert text.code == 0 and document["ok"]
    findings = {one["name"]: one for one in document["findings"]}
    assert {"asterism", "python", "torch", "numpy", "[train]", "kernel", "threads", "gpu", "cache", "prices"} <= {
        *findings
    }
    assert all(name in text.out for name in findings)
    assert findings["torch"]["state"] == "ok"
    assert "instructions" in findings["kernel"]["value"]
    assert "[dev]" not in findings


def test_what_is_missing_is_named_with_its_remedy(run: Run, monkeypatch: pytest.MonkeyPatch):
    def fail():
        raise KernelError("no-compiler", "none of c++, g++, clang++ is on the PATH. Install one")

    monkeypatch.setattr(build, "library", fail)
    result = run("doctor")
    assert result.code == 1
    assert result.out.startswith("missing, and needed:\n  kernel ")
    assert "slower 'eager': none of c++" in " ".join(result.out.split())
    assert result.err == "asterism: error: missing: kernel; the report above tells how to get it\n"


def test_versions_that_are_too_old_or_absent(monkeypatch: pytest.MonkeyPatch):
    lines = ["numpy>=2.0", "torch>=99.1", "nothing-there>=1; extra == 'train'", "x>=1; extra == 'train'"]
    lines += ["y>=1; (platform_system == 'Plan9') and extra == 'train'", "z; extra == 'dev'"]
    monkeypatch.setattr(installed, "requires", lambda name: lines)
    installed.required.cache_clear()
    try:
        found = {one.name: one for one in [*doctor.versions(), *doctor.extras()]}
    finally:
        installed.required.cache_clear()
    assert (found["numpy"].state, found["torch"].state) == ("ok", "missing")
    assert found["torch"].remedy == "pip install 'torch>=99.1'"
    assert found["[train]"].state == "optional"
    assert found["[train]"].value == "lacks nothing-there>=1, x>=1"
    assert found["[train]"].remedy == "pip install '.[train]' in a checkout"
    assert "[dev]" not in found


def test_what_is_needed_comes_before_what_is_optional(run: Run):
    out = run("doctor").out
    titles = [line for line in out.splitlines() if not line.startswith(" ")]
    assert titles == ["there:", "optional, and not there:"]
    absent = out[out.index(titles[1]) :]
    assert "  gpu " in absent and "lacks" not in out[: out.index(titles[1])]
    found = [doctor.Finding(name=state, state=state, value="") for state in ("optional", "ok", "missing", "ok")]
    assert [one.state for one in doctor.by_importance(found)] == ["missing", "ok", "ok", "optional"]


def test_versions_that_are_newer_than_the_tests_are_named():
    assert str(Requirement("torch", "", "2.13.0+cpu")) == "torch 2.13.0+cpu"
    newer = Requirement("transformers", ">=5.17", "99.0.1")
    assert newer.is_met and str(newer) == f"transformers 99.0.1 (newer than {NEWEST}, the newest tested)"
    assert {"torch": PINNED["torch"], "transformers": NEWEST} == installed.NEWEST_TESTED


@pytest.mark.parametrize(
    ("constraint", "found", "is_met"),
    [
        (">=2.11", "2.13.0+cpu", True),
        (">=2.11", "2.9", False),
        (">=2.0", "2", True),
        ("==1.11.2", "1.11.2", True),
        ("==1.11.2", "1.11.3", False),
        (">=1,<3", "2.5", True),
        ("", "0.1", True),
        (">=1", None, False),
    ],
)
def test_constraints(constraint: str, found: str | None, is_met: bool):
    assert Requirement("x", constraint, found).is_met is is_met


def test_a_cache_folder_that_cannot_be_used(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "file"))
    finding = doctor.cache_folder()
    assert finding.state == "missing" and "ASTERISM_CACHE" in finding.remedy
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "x").write_bytes(b"x" * 2000)
    assert doctor.cache_folder().value.endswith("/cache, 2 kB in 1 files")


def test_no_other_words(run: Run):
    refuses(run("doctor", "now"), 2, "unexpected argument 'now'")
