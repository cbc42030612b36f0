"""Every error that the library raises has a code: words joined by hyphens, written where it is raised."""

import ast
import copy
import pickle
import re

import pytest
from refusals import refusing
from repository import ROOT

from asterism import patterns
from asterism.errors import ConfigurationError, KernelError, PatternError
from asterism.models.cache.layer import NoTensorsError
from asterism.training.run.processes import OtherProcessError

CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
OF_THEIR_OWN = {"Disagreement", "NoTensorsError"}
"""Classes whose errors all have one code."""


def names_of_errors(trees):
    """The classes of errors: of one file after another, those that inherit from one that is known."""
    found = {"AsterismError"}
    while True:
        more = {
            node.name
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and found & {ast.unparse(base) for base in node.bases}
        }
        if more <= found:
            return found
        found |= more


def uncoded(source):
    """FILE:LINE of every error that is made without a code of letters."""
    trees = {file: ast.parse(file.read_text()) for file in sorted(source.rglob("*.py"))}
    names = names_of_errors(trees.values()) - OF_THEIR_OWN
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                code = node.args[0] if len(node.args) > 1 else None
                if not (isinstance(code, ast.Constant) and CODE.fullmatch(str(code.value))):
                    yield f"{file.relative_to(source)}:{node.lineno}"


def test_every_error_has_a_code():
    assert not list(uncoded(ROOT / "src" / "asterism"))


def test_an_error_without_one_is_found(tmp_path):
    (tmp_path / "some.py").write_text(
        "class AsterismError(Exception): ...\nclass OtherError(AsterismError): ...\n"
        "OtherError('no code')\nOtherError('No Code', 'text')\nOtherError('a-code', 'text')\n"
    )
    assert list(uncoded(tmp_path)) == ["some.py:3", "some.py:4"]


def test_the_code_is_no_part_of_the_message():
    with refusing(PatternError, "below-minimum", "left", "-1") as caught:
        patterns.window(left=-1)
    assert "below-minimum" not in str(caught.value)


def test_another_code_class_or_value_is_not_taken():
    for error, code, value in (
        (PatternError, "above-maximum", "-1"),
        (KernelError, "below-minimum", "-1"),
        (PatternError, "below-minimum", "-2"),
    ):
        with pytest.raises((AssertionError, PatternError)), refusing(error, code, value):
            patterns.window(left=-1)


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("a-code", "text"), NoTensorsError("keys"), OtherProcessError("a-code", "text", 3)],
)
def test_copies_are_the_same_error(error):
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (other.code, str(other), other.exit_code) == (error.code, str(error), error.exit_code)
