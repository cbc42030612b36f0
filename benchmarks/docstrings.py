"""Public functions that take or return arrays and give no shapes or dtypes: `tests/house/test_docstrings.py` reads it.

A shape is brackets with names or numbers of axes, such as [B, N] or [2], or [...] for any. It may be in the docstring
of the function, of its class, or of the method that it overrides. A dtype may also be in an annotation (`Integers`), or
in the docstring of the module, where it holds for all arrays of that file.

python benchmarks/docstrings.py [SOURCE]
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "asterism"
TYPED = {"Integers", "Booleans", "Floats", "Bits", "Verdicts"}
"""Names of arrays that include a dtype."""
ARRAYS = TYPED | {"Tensor", "ndarray", "NDArray", "FloatTensor", "LongTensor"}
SHAPE = re.compile(r"\[[^\]\n]*([A-Za-z0-9]|\.\.\.)[^\]\n]*\]|\bscalars?\b|\b0-d\b")
DTYPE = re.compile(r"\b(u?int(8|16|32|64)?|float(16|32|64)?|bfloat16|bool|complex(64|128)?|dtypes?)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(source: Path) -> None:
    """Print a line for each function that lacks a shape or a dtype, and their number."""
    found = list(lacking(source))
    print(*found, f"{len(found):,}  functions without shapes or dtypes", sep="\n")


def lacking(source: Path) -> Iterator[str]:
    """Of all files, `FILE:LINE NAME: what is missing`."""
    trees = {file.relative_to(source): ast.parse(file.read_text()) for file in sorted(source.rglob("*.py"))}
    classes = defaultdict(list)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(node)
    for file, tree in trees.items():
        for function, owner in public(tree):
            texts = list(inherited(function, owner, classes)) if owner else [text_of(function)]
            named = annotated(function)
            if not named & ARRAYS or any("overload" in ast.unparse(each) for each in function.decorator_list):
                continue
            missing = [] if any(map(SHAPE.search, texts)) else ["shape"]
            typed = named & ARRAYS <= TYPED or any(map(DTYPE.search, [*texts, text_of(tree)]))
            missing += [] if typed else ["dtype"]
            if missing:
                name = f"{owner.name}.{function.name}" if owner else function.name
                yield f"{file}:{function.lineno} {name}: {' and '.join(missing)}"


def public(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Public functions of a file, and public methods of its public classes with their class."""
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, None
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((part, node) for part in node.body if isinstance(part, Function) and part.name[0] != "_")


def annotated(function: Function) -> set[str]:
    """The names in the annotations of a signature."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotations = [argument.annotation for argument in arguments] + [function.returns]
    found = set()
    for annotation in filter(None, annotations):
        for node in ast.walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\w+", node.value))
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found


def inherited(function: Function, owner: ast.ClassDef, classes: dict[str, list[ast.ClassDef]]) -> Iterator[str]:
    """The docstrings of a method, of its class, and the same of the classes that these inherit from."""
    met, met_names = [owner], {owner.name}
    for each in met:
        yield text_of(each)
        yield from (text_of(part) for part in each.body if isinstance(part, Function) and part.name == function.name)
        for base in each.bases:
            for node in ast.walk(base):
                name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
                if name is not None and name not in met_names:
                    met_names.add(name)
                    met += classes.get(name, [])


def text_of(node: Function | ast.ClassDef | ast.Module) -> str:
    """A docstring, or nothing."""
    return ast.get_docstring(node) or ""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
