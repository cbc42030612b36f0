"""Counts of the source: class names defined twice, circles of imports, merges, caches, files that name ranks.

python benchmarks/counts.py [SOURCE]
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "asterism"
RANKS = re.compile(r"\b(rank|ranks|mesh|torch\.distributed|DeviceMesh|ProcessGroup)\b")
MERGES = {"logaddexp", "logsumexp"}
CACHES = {"lru_cache", "cache", "cached_property", "Memo"}


def main(source: Path) -> None:
    """Print one count a line, and what it counts where there is little of it."""
    trees = {file.relative_to(source): ast.parse(file.read_text()) for file in sorted(source.rglob("*.py"))}
    classes = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(file)
    twice = {name: files for name, files in classes.items() if len(files) > 1}
    shown("class names defined twice", [f"{name} ({', '.join(map(str, files))})" for name, files in twice.items()])
    shown("circles between rooms of training/", circles(trees))
    shown("files that merge by log-sum-exp", [file for file, tree in trees.items() if MERGES & set(names(tree))])
    shown("functions and classes that keep results", [each for file in trees for each in kept(file, trees[file])])
    shown("files outside parallel/ that name ranks", [file for file in trees if names_ranks(file, trees[file])])
    print(f"{sum(len((source / file).read_text().splitlines()) for file in trees):6,}  lines of Python")


def shown(what: str, found: list[str] | list[Path]) -> None:
    """A count, and what was counted."""
    print(f"{len(found):6,}  {what}", *(f"\n            {one}" for one in found), sep="")


def names(tree: ast.AST) -> Iterator[str]:
    """Every name and attribute that a file uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def kept(file: Path, tree: ast.AST) -> Iterator[str]:
    """What a file keeps: a function under a cache, or a memo."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(CACHES & set(names(decorator)) for decorator in node.decorator_list):
                yield f"{file}: {node.name}"
        elif isinstance(node, ast.Call) and "Memo" in names(node.func):
            yield f"{file}: line {node.lineno}"


def names_ranks(file: Path, tree: ast.AST) -> bool:
    """Whether the code of a file outside parallel/ names ranks, a mesh or torch.distributed; prose does not count."""
    return file.parts[0] != "parallel" and RANKS.search(" ".join([*names(tree), *imported(tree)])) is not None


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def circles(trees: dict[Path, ast.Module]) -> list[str]:
    """Pairs of rooms of training/ that import each other, functions and types included."""
    arrows = set()
    for file, tree in trees.items():
        if file.parts[0] == "training" and len(file.parts) > 1:
            for module in imported(tree):
                parts = module.split(".")
                if parts[:2] == ["asterism", "training"] and len(parts) > 2:
                    arrows.add((Path(file.parts[1]).stem, parts[2]))
    return sorted(f"{one} and {other}" for one, other in arrows if one < other and (other, one) in arrows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
