"""A wrong argument is refused before torch and transformers are imported, which takes seconds."""

import json
import os
import subprocess
import sys

WRONG = {
    "evaluate nothing": 4,
    "evaluate empty --data nothing": 4,
    "predict nothing --data examples.jsonl": 4,
    "generate nothing --prompt x": 4,
    "generate nothing --output x.png": 4,
    "train --data nothing": 3,
    "train --data nothing --dry-run": 3,
    "train --recipe nothing": 2,
    "train --resume --folder nothing": 4,
    "train --init-from nothing": 4,
    "train --optimizer nothing": 2,
    "train --steps 0": 2,
    "finetune --task classify --model bigbird-tiny --from-scratch --data nothing": 3,
    "finetune --task translate --model bigbird-tiny --from-scratch --data examples.jsonl,nothing": 3,
    "finetune --task classify --model nothing --data examples.jsonl": 4,
    "import nothing --output x": 4,
    "promises nothing": 2,
    "certify window(1": 2,
    "plan nothing() -n 4": 2,
    "simulate nothing": 2,
}

SCRIPT = """
import contextlib, io, json, sys
from asterism.cli.main import main
for words in json.loads(sys.argv[1]):
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = main(words.split(" "))
    heavy = [name for name in ("torch", "transformers") if name in sys.modules]
    print(json.dumps([words, code, told.getvalue(), heavy]))
"""


def test_wrong_arguments_are_refused_before_heavy_imports(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "examples.jsonl").write_text('{"text": "a", "label": "b"}\n')
    command = [sys.executable, "-c", SCRIPT, json.dumps(list(WRONG))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = {words: (code, told, heavy) for words, code, told, heavy in map(json.loads, done.stdout.splitlines())}
    assert {words: code for words, (code, _, _) in seen.items()} == WRONG
    for words, (_, told, heavy) in seen.items():
        assert not heavy, f"{words}: imports {heavy} before it says {told}"
        assert told.startswith("asterism: error: ") and told.count("\n") == 1, f"{words}: {told}"


def test_a_backend_that_matplotlib_does_not_know_is_one_line(tmp_path):
    command = [sys.executable, "-m", "asterism.cli.main", "reproduce", "turing"]
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("needs matplotlib, which knows no MPLBACKEND=nonsense; unset it\n")
    assert not any(tmp_path.iterdir())
