"""What importing `asterism.models` changes in transformers is what `install` says, and once is enough."""

import re
import subprocess
import sys

from asterism.models.drop_in import install

CHANGES = """
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
KINDS = [AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel]
seen = lambda: [dict(vars(kind)) | dict(getattr(kind, "_global_mapping", {})) for kind in KINDS]

def changed(before):
    for kind, old, new in zip(KINDS, before, seen()):
        for name in sorted(new):
            if name not in old or old[name] is not new[name]:
                print(kind.__name__, name)

before = seen()
import asterism.models
changed(before)
before = seen()
asterism.models.drop_in.install()
print("again")
changed(before)
"""


def test_what_is_changed_is_what_the_function_says():
    out = subprocess.run([sys.executable, "-c", CHANGES], capture_output=True, text=True, check=True).stdout
    changes, again = out.split("again\n")
    named = set(re.findall(r"\w+", install.__doc__))
    found = [line.split() for line in changes.splitlines()]
    assert len(found) == 8 and all({kind, name} <= named for kind, name in found), found
    assert not again
