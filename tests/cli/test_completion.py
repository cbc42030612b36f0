"""asterism completion: bash completes verbs, flags, choices and folders by the script that is printed."""

import subprocess
from pathlib import Path

import pytest
from command_line import Run, refuses

pytest.importorskip("shtab")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shtab

    from asterism.cli.completion import whole_parser

    path = tmp_path_factory.mktemp("completion") / "asterism"
    path.write_text(shtab.complete(whole_parser(), "bash"))
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], {"train"}),
        (["train", "--rep"], {"--report-bytes"}),
        (["train", "--no-gr"], {"--no-gradient-checkpointing"}),
        (["train", "--recipe", "bigbird-itc"], {"bigbird-itc-base", "bigbird-itc-large"}),
        (["train", "--model.block", ""], {"pre_norm", "post_norm", "all_attention"}),
        (["finetune", "--task", "t"], {"tag", "translate"}),
        (["evaluate", "--split", ""], {"train", "validation", "test"}),
        (["evaluate", "ru"], {"runs"}),
    ],
)
def test_bash(script: Path, tmp_path: Path, words: list[str], offered: set[str]):
    (tmp_path / "runs").mkdir()
    (tmp_path / "rubbish").touch()  # no folder, so no run
    quoted = " ".join(f"'{word}'" for word in ["asterism", *words])
    command = (
        f'source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _shtab_asterism; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert set(done.stdout.split()) == offered


def test_zsh_and_unknown_shells(run: Run):
    assert run("completion", "zsh").out.startswith("#compdef asterism")
    refuses(run("completion", "pash"), 2, "invalid choice: 'pash'")
