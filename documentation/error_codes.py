"""The page of error codes, docs/reference/error-codes.md: every code, from the source, with its message as a template.

Nothing is imported: the calls that make errors are found in the syntax trees of src/asterism.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from error_remedies import REMEDIES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "asterism"

CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

MAKERS = {
    "error": "PatternError or ConfigurationError",
    "refusal": "answer of `asterism explore`",
    "_refused": "answer of `asterism explore`",
}
"""Names that make errors and are not classes, and what they make."""

_TRANSPARENT = {"chr", "float", "fsencode", "int", "join", "list", "one_line", "quoted", "repr", "round", "shown"}
_TRANSPARENT |= {"max", "min", "sorted", "str", "tuple"}
"""Functions that write their argument, and do not change what it is."""
_METHODS = {"hex", "item", "nonzero", "partition", "split", "strip", "tolist"}
"""Methods that do not change what their object is."""
_OPTIONAL = {"nearest", "hint"}
"""A clause that a message may end with, such as " Did you mean 'x'?"."""
_UNREAD = "<the reason>"
"""A message, or a part of one, that is not written where the error is made."""
_WRITTEN = ast.Constant | ast.JoinedStr

INTRODUCTION = """\
# Error codes

Every error has a code, which is `error.code` in Python. The command line prints only the message. Search this page for
the code, or for a few words of the message. [Errors and exit codes](errors.md) explains the classes and the exit codes.

- Words in `<angle brackets>` stand for values. A part in `[square brackets]` may be absent, or is one of two.
- `<the reason>` stands for a message that the code composes from several parts.
- Each group belongs to one folder of the source.
- Most messages say what to do. Where one does not, a sentence may follow it.
"""


@dataclass(frozen=True)
class Raised:
    """Where an error is made: its class, its code, its messages as templates, and the file within src/asterism."""

    kind: str
    code: str
    messages: tuple[str, ...]
    file: Path

    @property
    def room(self) -> str:
        """The folder as docs/architecture.md names it, or "" for files beside the folders."""
        parts = self.file.parts[:-1]
        return "".join(f"{part}/" for part in parts[: 2 if parts and parts[0] == "training" else 1])


@dataclass
class _Names:
    """What names at the top of files stand for: values and functions."""

    constants: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    def note(self, tree: ast.Module) -> None:
        """Note what a file has at its top."""
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node


def error_codes() -> str:
    """The text of the page."""
    rooms = _rooms()
    found: dict[str, list[Raised]] = {}
    for one in _all_raised():
        found.setdefault(one.room, []).append(one)
    unknown = sorted(REMEDIES.keys() - {one.code for every in found.values() for one in every})
    homeless = sorted(found.keys() - rooms.keys())
    if homeless:
        raise SystemExit(f"docs/architecture.md has no line for {', '.join(homeless)}, where errors are raised")
    if unknown:
        raise SystemExit(f"documentation/error_remedies.py names codes that nothing raises: {', '.join(unknown)}")
    order = [room for room in rooms if room in found]
    lines = [INTRODUCTION, "This page is written by `make reference`.\n", "| folder | its work |\n|---|---|"]
    lines += [f"| [{_title(room)}](#{_anchor(room)}) | {rooms[room]} |" for room in order]
    anchored: set[str] = set()
    for room in order:
        lines += [f"\n## {_title(room)}\n", "| code, class | message |\n|---|---|"]
        for code in sorted({one.code for one in found[room]}):
            lines.append(_row(code, [one for one in found[room] if one.code == code], code not in anchored))
            anchored.add(code)
    return "\n".join([*lines, ""])


@cache
def _all_raised() -> tuple[Raised, ...]:
    return tuple(raised(SOURCE))


def raised(source: Path) -> Iterator[Raised]:
    """Every place of the source that makes an error with a code, file after file."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(source.rglob("*.py"))}
    classes, shared = _classes(trees.values()), _Names()
    for tree in trees.values():
        shared.note(tree)
    for file, tree in trees.items():
        own = _Names(dict(shared.constants), dict(shared.functions))
        own.note(tree)
        for node in ast.walk(tree):
            if (made := _made(node, classes)) is not None:
                kind, call = made
                templates = tuple(dict.fromkeys(_tidy(text) for text in _templates(call.args[1], own)))
                yield Raised(kind, ast.literal_eval(call.args[0]), templates, file.relative_to(source))


def _classes(trees: Iterable[ast.Module]) -> set[str]:
    """The names of AsterismError and of all classes that inherit from it."""
    found = {"AsterismError"}
    defined = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while True:
        more = {node.name for node in defined if found & {ast.unparse(base) for base in node.bases}}
        if more <= found:
            return found
        found |= more


def _made(node: ast.AST, classes: set[str]) -> tuple[str, ast.Call] | None:
    """What a node makes, if that is an error with a code: the class as the page names it, and the call (code, message).

    A class whose errors all have one code makes them by `super().__init__(code, message)`.
    """
    if isinstance(node, ast.ClassDef) and node.name in classes:
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and _coded(one)]
        own = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
        return (node.name, own[0]) if own else None
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _coded(node)):
        return None
    kind = node.func.id if node.func.id in classes else MAKERS.get(node.func.id)
    return None if kind is None else (kind, node)


def _coded(call: ast.Call) -> bool:
    first = call.args[0] if len(call.args) > 1 else None
    return isinstance(first, ast.Constant) and CODE.fullmatch(str(first.value)) is not None


# --- messages as templates -------------------------------------------------------------------------------------------


def _templates(message: ast.expr, names: _Names, depth: int = 0) -> list[str]:
    """The texts that an expression may give, with <names> where values stand."""
    match message:
        case ast.Constant(value=text):
            return [str(text)]
        case ast.JoinedStr(values=parts):
            return ["".join(_piece(part, names) for part in parts)]
        case ast.IfExp(body=body, orelse=other):
            return [*_templates(body, names, depth), *_templates(other, names, depth)]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return [f"{one}{two}" for one in _templates(left, names, depth) for two in _templates(right, names, depth)]
        case ast.Name(id=name) if name in names.constants and depth < 3:
            return _templates(names.constants[name], names, depth + 1)
        case ast.Call(func=ast.Name(id=name)) if name in names.functions and depth < 3:
            given = [one.value for one in ast.walk(names.functions[name]) if isinstance(one, ast.Return) and one.value]
            return [text for value in given for text in _templates(value, names, depth + 1)] or [_UNREAD]
        case ast.Call(func=ast.Attribute(attr="get"), args=[_, other]):
            return [_UNREAD, *_templates(other, names, depth)]
        case _ if _named(message) in _OPTIONAL:
            return [""]
    return [_UNREAD]


def _piece(part: ast.expr, names: _Names) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Name) and isinstance(names.constants.get(value.id), _WRITTEN):
        return _piece_of_constant(names.constants[value.id], names)
    if isinstance(value, ast.IfExp) and all(isinstance(one, _WRITTEN) for one in (value.body, value.orelse)):
        return _either(*(_templates(one, names)[0] for one in (value.body, value.orelse)))
    name = _named(value)
    return "" if name in _OPTIONAL else f"<{name}>"


def _piece_of_constant(value: ast.expr, names: _Names) -> str:
    if isinstance(value, ast.Constant):
        return f"{value.value:,}" if isinstance(value.value, int) else str(value.value)
    return _templates(value, names)[0]


def _either(one: str, other: str) -> str:
    """Two texts of which a message has one; an empty one makes the other a clause that may be absent."""
    return f"[{one or other}]" if not (one and other) else f"[{one} | {other}]"


def _named(value: ast.expr) -> str:
    """What a value of a message is, in a word or a few."""
    match value:
        case ast.Name(id=name):
            return name.strip("_").replace("_", " ").lower() if name not in ("x", "self") else "value"
        case ast.Attribute(value=of, attr="shape" | "dtype" | "device" as attribute):
            return f"{attribute} of {_named(of)}"
        case ast.Attribute(value=ast.Call(func=ast.Name(id="type")), attr="__name__"):
            return "type"
        case ast.Attribute(attr=attribute):
            return attribute.strip("_").replace("_", " ")
        case ast.Call(func=ast.Name(id="len"), args=[of]):
            return f"number of {_named(of)}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[of, *_]) if name in _TRANSPARENT:
            return _named(of)
        case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _METHODS:
            return _named(of)
        case ast.Call(func=ast.Name(id="getattr") | ast.Attribute(attr="get")):
            return "value"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.strip("_").replace("_", " ")
        case ast.Subscript(value=of) | ast.Starred(value=of) | ast.UnaryOp(operand=of):
            return _named(of)
        case ast.BoolOp(values=[of, *_]) | ast.BinOp(left=of) | ast.IfExp(body=of):
            return _named(of)
        case ast.GeneratorExp(elt=of) | ast.ListComp(elt=of) | ast.FormattedValue(value=of):
            return _named(of)
        case ast.JoinedStr(values=parts):
            return next((_named(part) for part in parts if not isinstance(part, ast.Constant)), "text")
    return "value"


def _tidy(text: str) -> str:
    """One line, without blanks at its ends."""
    return " ".join(text.split())


# --- the page --------------------------------------------------------------------------------------------------------


def _rooms() -> Mapping[str, str]:
    """The folders and their work, in the order of docs/architecture.md; files beside the folders come first."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("| folder | what it holds |")[1]
    rows = re.findall(r"^\| `([a-z_/]+/)` \| (.*) \|$", text.split("\n\n")[0], re.MULTILINE)
    return {"": "files, calls as text, settings of models", **dict(rows)}


def _row(code: str, same: list[Raised], is_first: bool) -> str:
    """The row of a code; the first one of the page has an anchor, so that a link can name the code."""
    kinds = dict.fromkeys(one.kind for one in same)
    messages = dict.fromkeys(message for one in same for message in one.messages)
    told = [*map(_quoted, messages), *([REMEDIES[code]] if code in REMEDIES else [])]
    anchor = f'<a id="{code}"></a>' if is_first else ""
    return f"| {anchor}`{code}`<br>{'<br>'.join(kinds)} | {'<br>'.join(told)} |"


def _title(room: str) -> str:
    return room.removesuffix("/") or "Shared files"


def _anchor(room: str) -> str:
    """The anchor that builders of the site give to the title."""
    return re.sub(r"[^\w -]", "", _title(room)).lower().replace(" ", "-")


def _quoted(message: str) -> str:
    """A message as code in a cell of a table."""
    fence = "``" if "`" in message else "`"
    blank = " " if fence == "``" else ""
    return f"{fence}{blank}{message}{blank}{fence}".replace("|", r"\|")
