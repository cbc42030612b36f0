import json

import pytest
from command_line import refuses
from run_folders import finished, write_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_page_and_what_it_says_in_short(run, tmp_path):
    finished(tmp_path / "a")
    result = run("report", "a")
    assert result.code == 0 and result.err == ""
    for said in ("Finished after 40 steps.", "2.5000 on 1,000 bytes", "zlib 3.2500", "a/model", "asterism evaluate a"):
        assert said in result.out
    assert "report saved in report.html" in result.out and "<h2" in (tmp_path / "report.html").read_text()


def test_the_same_figures_as_one_document(run, tmp_path):
    finished(tmp_path / "a")
    write_run(tmp_path / "b")
    result = run("report", "a", "b", "--json", "--output", "x.html")
    document = json.loads(result.out)
    assert [one["name"] for one in document["runs"]] == ["a", "b"] and document["output"] == "x.html"
    assert document["runs"][0]["score"]["value"] == 2.5 and (tmp_path / "x.html").exists()


def test_a_page_is_replaced_and_other_files_only_where_they_are_named(run, tmp_path):
    finished(tmp_path / "a")
    assert run("report", "a").code == run("report", "a").code == 0
    (tmp_path / "report.html").write_text("mine")
    refuses(run("report", "a"), 2, "no report made it")
    assert (tmp_path / "report.html").read_text() == "mine"
    assert run("report", "a", "--output", "report.html").code == 0
    assert "<h2" in (tmp_path / "report.html").read_text()


def test_what_cannot_be_reported_is_one_line(run, tmp_path):
    finished(tmp_path / "a")
    refuses(run("report"), 2, "RUN")
    refuses(run("report", "none"), 4, "none is not a run folder")
    refuses(run("report", "a", "none"), 4, "none is not a run folder")
    refuses(run("report", "a", "--output", "x.pdf"), 2, "must end in .html")
    refuses(run("report", "a", "--output", "no/x.html"), 2, "no folder")
    refuses(run("report", *["a"] * 33), 2, "33 runs")
    (tmp_path / "a" / "run.json").write_text("{")
    refuses(run("report", "a"), 4, "damaged")
    assert not (tmp_path / "report.html").exists()
