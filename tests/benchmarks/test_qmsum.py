"""The data of benchmarks/qmsum.py, and what is said of a meeting without a model, on a made-up meeting."""

import json
import lzma

import pytest
from repository import ROOT

MEETING = {
    "topic_list": [],
    "general_query_list": [{"query": "Summarize the meeting", "answer": "They chose a yellow case. "}],
    "specific_query_list": [
        {
            "query": "Is the battery a cheap one?",
            "answer": "The battery lasts two weeks and is a very cheap one.",
            "relevant_text_span": [["2", "2"]],
        }
    ],
    "meeting_transcripts": [
        {"speaker": "Chair", "content": "Okay , {vocalsound} let 's begin with what we did before ."},
        {"speaker": "Chair", "content": "{disfmarker}"},
        {"speaker": "Engineer", "content": "The battery lasts two weeks . It is <unclear> a very cheap one !"},
        {"speaker": "Designer", "content": "We do n't want it grey , so we chose a yellow case ."},
    ],
}


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pytest.importorskip("rouge_score")  # the extra `seq2seq`
    import extractive
    import qmsum

    return qmsum, extractive


def test_meetings_become_questions_about_what_was_said(scripts, tmp_path):
    qmsum, _ = scripts
    first, second = qmsum.questions("a.json", MEETING)
    assert (
        first["document"]
        == second["document"]
        == (
            "Chair: Okay, let's begin with what we did before.\n"
            "Engineer: The battery lasts two weeks. It is a very cheap one!\n"
            "Designer: We don't want it grey, so we chose a yellow case."
        )
    )
    assert (first["id"], first["question"], first["summary"]) == (
        "a.json#0",
        "Summarize the meeting",
        "They chose a yellow case.",
    )
    names = [f"{number}.json" for number in range(60)]
    with lzma.open(tmp_path / "q.xz", "wt") as file:
        file.writelines(json.dumps({"file": name, "meeting": MEETING}) + "\n" for name in names)
    found = qmsum.write_splits(tmp_path / "q.xz", tmp_path / "data", 500)
    assert sum(found["questions"].values()) == 120 and found["questions"]["train"] > 80
    there = {
        one: {row["id"].partition("#")[0] for row in qmsum._read(tmp_path / "data" / f"{one}.jsonl")}
        for one in qmsum.SPLITS
    }
    assert set.union(*there.values()) == set(names) and sum(map(len, there.values())) == 60
    texts = list(qmsum._read(tmp_path / "data" / "text.jsonl"))
    assert len(texts) == len(there["train"]), "a text that is not to be trained on was written to pretrain on"


def test_sentences_of_a_meeting_are_chosen(scripts):
    qmsum, extractive = scripts
    rows = qmsum.questions("a.json", MEETING)
    sentences = qmsum.sentences_of(rows[0]["document"])
    assert sentences[1:3] == ["The battery lasts two weeks.", "It is a very cheap one!"] and len(sentences) == 4
    assert extractive.lead(sentences, 2) == [0, 1] and extractive.lead(sentences, 9) == [0, 1, 2, 3]
    assert extractive.ranked(sentences, rows[1]["question"], 2) == [1, 2]
    assert extractive.oracle(sentences, rows[1]["summary"]) == [1, 2]
    assert extractive.oracle(sentences, "nothing of it") == [2] and extractive.oracle(sentences, "xyzzy") == []
    assert extractive.best_count(lambda count: -abs(count - 3)) == 3 and extractive.best_count(lambda _: 0.0) == 1
    first, best, nearest = qmsum.baselines(rows[1:], rows[1:])
    assert first["scores"]["rouge1"] < best["scores"]["rouge1"] <= nearest["scores"]["rouge1"]
