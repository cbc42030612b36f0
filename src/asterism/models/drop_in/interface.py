"""How a class of transformers calls its attention, read from its source before anything is changed.

Attention modules of transformers look the function up in `ALL_ATTENTION_FUNCTIONS` inside `forward` and call it with
the queries, keys, values, the mask, and keyword arguments. A pattern takes the place of the mask and knows some of the
arguments; a module that changes the mask or gives others cannot follow one, and that is known from its source alone.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from asterism.memo import remembering_few
from asterism.models.drop_in.field import IMPLEMENTATION

HARMLESS = frozenset(
    (
        "cache_position",
        "deterministic",
        "logits_to_keep",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "shift_labels",
        "use_cache",
    )
)
"""What models pass on to attention that says nothing about its scores; what is asked for and cannot be given, such as
attention weights, is refused when it is asked for."""

TERMS = frozenset(("dropout", "position_bias", "s_aux", "sinks", "softcap"))
"""What changes the score in a way that kernels know."""

CHOSEN = "block_indices"
"""The blocks of keys that queries chose, int32 or int64 [B, heads, N, K], -1 for none."""

KNOWN_ARGUMENTS = HARMLESS | TERMS | {"is_causal", "scaling", "sliding_window", CHOSEN}
"""What a module may give its attention function beside queries, keys, values and mask."""

_TABLE = "ALL_ATTENTION_FUNCTIONS"
"""Where transformers keeps attention functions by name."""

_OPERANDS = ("module", "query", "key", "value", "attention_mask")
"""What every attention function is given, in this order."""


@dataclass(frozen=True)
class Interface:
    """How a class calls the attention function.

    arguments    the names of what it gives beside queries, keys, values and mask
    mask_as_is   whether it hands on the mask that it was given, or none
    calls        how many calls there are
    """

    arguments: frozenset[str]
    mask_as_is: bool
    calls: int


def interface_of(module: nn.Module) -> Interface | None:
    """How a module calls the attention function; None for one that does not, or whose source is not there."""
    kind: Any = type(module)
    return _read(kind)


@remembering_few(1024)
def _read(kind: Any) -> Interface | None:
    try:
        source = textwrap.dedent(inspect.getsource(kind.forward))
    except (OSError, TypeError):
        return None
    if _TABLE not in source:
        return None
    tree = ast.parse(source)
    names = {target.id for node in ast.walk(tree) for target in _looked_up(node)}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    arguments = {word.arg for call in calls for word in call.keywords if word.arg is not None}
    as_is = bool(calls) and all(_as_is(call, tree) for call in calls)
    return Interface(frozenset(arguments) - set(_OPERANDS), as_is, len(calls))


def _looked_up(node: ast.AST) -> list[ast.Name]:
    """The variables that a statement sets to a function of the table."""
    match node:
        case ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value) if _TABLE in ast.unparse(value):
            return [name]
        case ast.Assign(targets=targets, value=value) if _TABLE in ast.unparse(value):
            return [target for target in targets if isinstance(target, ast.Name)]
    return []


def _as_is(call: ast.Call, tree: ast.Module) -> bool:
    """Whether a call hands on a parameter of `forward` as its mask, unchanged but for its choice among others."""
    mask: Any = next((word.value for word in call.keywords if word.arg == "attention_mask"), None)
    place = _OPERANDS.index("attention_mask")
    if mask is None and len(call.args) > place:
        mask = call.args[place]
    if mask is None or (isinstance(mask, ast.Constant) and mask.value is None):
        return True
    forward = tree.body[0]
    if not (isinstance(mask, ast.Name) and isinstance(forward, ast.FunctionDef)):
        return False
    parameters = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs)}
    return mask.id in parameters and all(_is_choice(value, parameters) for value in _values(mask.id, forward))


def _values(name: str, forward: ast.FunctionDef) -> list[ast.expr | None]:
    """What a variable is set to; None for what is no plain assignment to it alone.

    What is done for other attention functions, which the class names, is no concern of ours.
    """
    values: list[ast.expr | None] = []
    ours = list(_done_for_us(forward))
    for node in ours:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                values.append(value)
    stored = sum(isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name for node in ours)
    return values + [None] * (stored - len(values))


def _done_for_us(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without the bodies of `if ..._attn_implementation in ("eager", ...)`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _names_others(child.test):
            for other in (child.test, *child.orelse):
                yield from _done_for_us(other)
        else:
            yield from _done_for_us(child)


def _names_others(test: ast.expr) -> bool:
    match test:
        case ast.Compare(
            left=ast.Attribute(attr="_attn_implementation"), ops=[ast.In()], comparators=[ast.Tuple(elts)]
        ):
            return all(isinstance(one, ast.Constant) and one.value != IMPLEMENTATION for one in elts)
    return False


def _is_choice(value: ast.expr | None, parameters: set[str]) -> bool:
    """Whether an expression is a parameter, or one of two."""
    match value:
        case ast.Name(id=name):
            return name in parameters
        case ast.IfExp(body=ast.Name(id=one), orelse=ast.Name(id=other)):
            return {one, other} <= parameters
    return False
