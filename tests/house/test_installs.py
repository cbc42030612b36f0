"""The core alone, numpy, scipy, torch and safetensors, shows, certifies and attends; what trains names its extra."""

import json
import subprocess
import sys

SCRIPT = """
import contextlib, io, json, sys
for name in ("accelerate", "huggingface_hub", "jsonargparse", "matplotlib", "rich", "tensorboard", "transformers"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
from asterism.cli.main import main
for words in json.loads(sys.argv[1]):
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = main(words.split(" "))
    print(json.dumps([words, code, told.getvalue()]))
import torch
from asterism import SparseAttention, attend
q = torch.randn(1, 2, 40, 8)
assert attend(q, q, q, "window(left=3)", implementation="eager").shape == q.shape
assert SparseAttention(16, 2, "window(left=3)", implementation="eager")(torch.randn(1, 5, 16)).shape == (1, 5, 16)
"""

WORK = ("show window(1) -n 6", "plan window(1) -n 64", "certify star() -n 8", "simulate increment --input 11")
NEED_THE_EXTRA = {
    "train": "jsonargparse",
    "finetune --task classify": "jsonargparse",
    "promises": "transformers",
    "reproduce --list": "huggingface_hub",
}


def test_the_core_works_without_what_training_needs():
    command = [sys.executable, "-c", SCRIPT, json.dumps([*WORK, *NEED_THE_EXTRA])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = {words: (code, told) for words, code, told in map(json.loads, done.stdout.splitlines())}
    assert [seen[words] for words in WORK] == [(0, "")] * len(WORK)
    for words, package in NEED_THE_EXTRA.items():
        verb = words.split()[0]
        told = f"asterism: error: {verb} needs {package}: pip install '.[train]' in a checkout\n"
        assert seen[words] == (1, told)
