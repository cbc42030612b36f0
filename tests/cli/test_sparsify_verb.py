"""asterism sparsify from the command line: a table, a certificate, a model; and one line for what it refuses."""

from causal_folders import save_causal
from command_line import refuses

from asterism.evaluation.words import NOUNS

LENGTH = 96


def test_the_verb(run, tmp_path):
    folder, texts = save_causal(tmp_path / "llama", windowed=False), tmp_path / "texts.txt"
    texts.write_text(" ".join(NOUNS * 20))
    words = ["sparsify", folder, "--data", texts, "--length", LENGTH, "--documents", 1, "--held-out", 1, "--window", 6]
    words += ["--trials", 2, "--output", tmp_path / "out", "--budget"]
    done = run(*words, "cache=50%", "--apply", tmp_path / "sparse", "--plot", tmp_path / "plot.svg")
    assert done.code == 0, done.err
    assert "certificate: " in done.out and "schedule.txt" in done.out
    assert (tmp_path / "plot.svg").exists()
    refuses(run(*words, "cash=50%"), 2, "budget: write keys=512")
    refuses(run(*words, "keys=50%", "--apply", tmp_path / "sparse"), 4, "is not an empty folder")
    refuses(run(*words[:3], tmp_path / "nothing", "--budget", "keys=9"), 3, "there is no file or folder")
