"""Counts of concepts in the source: names that stand for two things, merges, caches, files that name ranks.

    python benchmarks/counts.py [SOURCE ...]

Prints one line a count with a column for each source, then, of the last source, the places that were counted. Only code
is counted: comments and docstrings may say anything.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from docstrings import lacking

SOURCE = Path(__file__).parent.parent / "src" / "asterism"
LONG = 600
"""Lines of a file that can be read in one sitting."""


@dataclass(frozen=True)
class Source:
    """A package, parsed: its folder, and the tree of each file by its path in it."""

    folder: Path
    trees: dict[str, ast.Module]

    @classmethod
    def read(cls, folder: Path) -> "Source":
        """All files of a folder."""
        files = sorted(folder.rglob("*.py"))
        return cls(folder, {file.relative_to(folder).as_posix(): ast.parse(file.read_text()) for file in files})

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Every function with its file."""
        for file, tree in self.trees.items():
            yield from ((file, node) for node in ast.walk(tree) if isinstance(node, Function))


Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(folders: list[Path]) -> None:
    """Print the counts of all sources, and the places of the last one."""
    sources = [Source.read(folder) for folder in folders]
    found = {name: [count(source) for source in sources] for name, count in COUNTS.items()}
    for name, places in found.items():
        print(*(f"{len(of_one):7,}" for of_one in places), f" {name}", sep="")
    lines = (sum(len((source.folder / file).read_text().splitlines()) for file in source.trees) for source in sources)
    print(*(f"{count:7,}" for count in lines), "  lines of Python", sep="")
    for name, places in found.items():
        print(f"\n{name}, {len(places[-1])}:", *(f"  {place}" for place in places[-1]), sep="\n")


# --- what is counted --------------------------------------------------------------------------------------------------


def names_given_twice(source: Source) -> list[str]:
    """Classes of one name in several files."""
    homes = defaultdict(list)
    for file, tree in source.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(file)
    return [f"{name}: {', '.join(files)}" for name, files in homes.items() if len(files) > 1]


def merges(source: Source) -> list[str]:
    """Files that merge results by log-sum-exp; the way from scores to weights is a softmax, and no merge."""
    return _by_file(source, of_sinks=False)


def sinks(source: Source) -> list[str]:
    """Files that join a sink, which is a score without a value, to a softmax."""
    return _by_file(source, of_sinks=True)


def _by_file(source: Source, of_sinks: bool) -> list[str]:
    """Functions that add or exponentiate log-sum-exps, by file, of sinks or of results. In Triton there are others."""
    found = defaultdict(list)
    for file, function in source.functions():
        sums = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _is_of_log_sum_exps(node)]
        is_about = "triton" not in file and any("lse" in name for name in _names(function))
        if is_about and sums and of_sinks == any("sinks" in _names(node) for node in sums):
            found[file].append(function.name)
    return [f"{file}: {', '.join(functions)}" for file, functions in found.items()]


def _is_of_log_sum_exps(node: ast.Call) -> bool:
    """logaddexp(a, b), (a - b).exp() and sigmoid(a - b), but not (scores - lse).exp()."""
    difference = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else node
    of_scores = isinstance(difference, ast.BinOp) and "scores" in _names(difference.left)
    is_sigmoid = _called(node) == "sigmoid" and any("lse" in name for name in _names(difference))
    return _called(node) == "logaddexp" or is_sigmoid or (_called(node) == "exp" and not of_scores)


def parsers_of_borders(source: Source) -> list[str]:
    """Functions that check whether the borders of documents end with the tokens, as `bounds[-1] != tokens`."""
    return [
        f"{file}: {function.name}"
        for file, function in source.functions()
        if any(
            isinstance(node, ast.Compare)
            and re.fullmatch(r"\w+\[-1\]", ast.unparse(node.left))
            and "tokens" in _names(node.comparators[0])
            for node in ast.walk(function)
        )
    ]


def shifts(source: Source) -> list[str]:
    """Functions about labels that take all but the first, or all but the last, along the tokens of an array."""
    return [
        f"{file}: {function.name}"
        for file, function in source.functions()
        if "label" in ast.unparse(function)
        and any(isinstance(node, ast.Subscript) and _is_shift(node) for node in ast.walk(function))
    ]


def _is_shift(node: ast.Subscript) -> bool:
    """x[:, 1:], x[..., :-1] and the like."""
    return isinstance(node.slice, ast.Tuple) and ast.unparse(node.slice.elts[-1]) in ("1:", ":-1")


def own_caches(source: Source) -> list[str]:
    """Caches with a bound, or none, of their own: of functools, memos with a size, weak dictionaries."""
    kinds = {"lru_cache", "cache", "Memo", "WeakKeyDictionary", "WeakValueDictionary"}
    return list(_made_by(source, kinds))


def kept_in_one_store(source: Source) -> list[str]:
    """Functions whose results are kept by memo.py."""
    return list(_made_by(source, {"remembering", "remembering_few"}))


def cached_properties(source: Source) -> list[str]:
    """What an object keeps of itself, and dies with it."""
    return list(_made_by(source, {"cached_property"}))


def _made_by(source: Source, kinds: set[str]) -> Iterator[str]:
    """Decorators and calls of these names."""
    for file, tree in source.trees.items():
        decorators = {
            id(decorator): node.name
            for node in ast.walk(tree)
            if isinstance(node, Function)
            for decorator in node.decorator_list
        }
        for node in ast.walk(tree):
            if id(node) in decorators:
                if kinds & {_called(node), _name(node)}:
                    yield f"{file}: {decorators[id(node)]}"
            elif isinstance(node, ast.Call) and _called(node) in kinds:
                yield f"{file}: line {node.lineno}"


RANKS = re.compile(r"rank|ranks|mesh|DeviceMesh|ProcessGroup")
ORDERS = {"training/tasks/scores/curves.py": "ranks of scores", "evaluation/counting.py": "ranks of words"}
"""Files in which a rank is a place in an order and no process."""


def names_of_ranks(source: Source) -> list[str]:
    """Files outside parallel/ whose code names a rank, a mesh or torch.distributed."""
    found = []
    for file, tree in source.trees.items():
        named = {name for name in _names(tree) if RANKS.fullmatch(name)}
        modules = {module for module in _imported(tree) if module.startswith("torch.distributed")}
        if (named or modules) and not file.startswith("parallel/") and file not in ORDERS:
            found.append(f"{file}: {', '.join(sorted(named | modules))}")
    return found


def circles(source: Source) -> list[str]:
    """Pairs of rooms of training/ that import each other, in functions and for types too."""
    arrows = set()
    for file, tree in source.trees.items():
        room = file.removesuffix(".py").split("/")[1:2]
        for module in _imported(tree):
            parts = module.split(".")
            if file.startswith("training/") and parts[:2] == ["asterism", "training"] and len(parts) > 2:
                arrows.add((room[0], parts[2]))
    return sorted(f"{one} and {other}" for one, other in arrows if one < other and (other, one) in arrows)


def without_shapes(source: Source) -> list[str]:
    """Public functions of arrays whose docstrings give no shape or no dtype: see docstrings.py."""
    return list(lacking(source.folder))


def long_tests(source: Source) -> list[str]:
    """Test files that are too long to be read in one sitting."""
    tests = source.folder.parent.parent / "tests"
    lengths = {file.relative_to(tests): len(file.read_text().splitlines()) for file in sorted(tests.rglob("*.py"))}
    return [f"{file}: {length:,} lines" for file, length in lengths.items() if length > LONG]


COUNTS: dict[str, Callable[[Source], list[str]]] = {
    "class names that stand for several things": names_given_twice,
    "files that merge by log-sum-exp": merges,
    "files that join a sink": sinks,
    "parsers of documents' borders": parsers_of_borders,
    "shifts of labels": shifts,
    "caches of their own": own_caches,
    "functions whose results memo.py keeps": kept_in_one_store,
    "cached properties": cached_properties,
    "files outside parallel/ that name ranks": names_of_ranks,
    "circles between rooms of training/": circles,
    "functions without shapes or dtypes": without_shapes,
    f"test files above {LONG} lines": long_tests,
}


# --- reading of code --------------------------------------------------------------------------------------------------


def _names(tree: ast.AST) -> set[str]:
    """Every name, attribute, parameter and function that a tree has."""
    found = set()
    for node in ast.walk(tree):
        found.add(_name(node))
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, Function):
            found.add(node.name)
    return found


def _name(node: ast.AST) -> str:
    """The last word of a name such as `torch.logaddexp`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _called(node: ast.AST) -> str:
    """The name of the function that a call calls; `Memo[...](...)` and a type before the call do not matter."""
    called = node.func if isinstance(node, ast.Call) else None
    return "" if called is None else _name(called.value if isinstance(called, ast.Subscript) else called)


def _imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]] or [SOURCE])
