"""The certificate of a schedule with what shows it, as marks on the mask, and reach layer by layer."""

from base64 import b64encode
from typing import Any

import numpy as np

from asterism.patterns import Schedule
from asterism.theory import Certificate, certify
from asterism.theory.certificates.reach import first_layers
from asterism.theory.certificates.witnesses import Hub, Separator, TooFewPredecessors, Unconnected

_CELLS = 128
_MOST_LAYERS = 254
"""Of the animation: a layer is one byte of the picture."""


def prove(schedule: Schedule, n: int) -> dict[str, Any]:
    """What theorems hold at n tokens: the lines of `asterism certify`, and for each condition what to mark.

    A mark has `rows`, `columns` (tokens) and `pairs` (query, key). `reach` is a picture, uint8 in base64, of at most
    128 x 128 cells: the layer after which all pairs of a cell are connected, 0 for none of those followed; `shares` are
    the shares of all pairs connected after each layer. Raises PatternError as `certify`.
    """
    certificate = certify(schedule, n)
    layers = min(max(certificate.reach.layers, 1), _MOST_LAYERS)
    first = first_layers(certificate.graphs, _CELLS, layers)
    return {
        "length": n,
        "lines": certificate.explain().splitlines(),
        "conditions": [_star(certificate), _loops(certificate), _path(certificate), _reach(certificate)],
        "reach": {
            "cells": len(first),
            "side": -(-n // min(_CELLS, n)),
            "layers": layers,
            "followed": certificate.reach.layers,
            "first": b64encode(first.astype(np.uint8).tobytes()).decode(),
            "shares": list(certificate.reach.fractions[:layers]),
        },
    }


def _condition(
    name: str, holds: bool | None, shows: str, pattern: int = 0, head: int = 0, **marks: Any
) -> dict[str, Any]:
    """A condition, and marks on the mask of one pattern of the cycle and one head of it."""
    empty: dict[str, Any] = {"rows": [], "columns": [], "pairs": []}
    return {"name": name, "holds": holds, "shows": shows, "pattern": pattern, "head": head, **empty, **marks}


def _star(certificate: Certificate) -> dict[str, Any]:
    name, hub = "Star", certificate.hub
    if isinstance(hub, Hub):
        shows = f"the hub, token {hub.token}: its row and its column are full"
        return _condition(name, True, shows, hub.pattern, hub.head, rows=[hub.token], columns=[hub.token])
    (pattern, head), missing = next(iter(hub.missing.items()))
    token = int(certificate.graphs[pattern].out_degrees.argmax())
    query, key = missing[token].tolist()
    shows = f"token {token} is not a hub: {query} does not read {key}"
    return _condition(name, False, shows, pattern, head, pairs=[(query, key)])


def _loops(certificate: Certificate) -> dict[str, Any]:
    name, missing = "Every token reads itself", certificate.missing_loop
    if missing is None:
        return _condition(name, True, "the diagonal", pairs=[(token, token) for token in range(certificate.n)])
    shows = f"token {missing.token} does not read itself"
    return _condition(name, False, shows, missing.pattern, missing.head, pairs=[(missing.token, missing.token)])


def _path(certificate: Certificate) -> dict[str, Any]:
    name, search = "Hamiltonian path", certificate.path
    if search.path is not None:
        order = search.path.tolist()
        pairs = list(zip(order[1:], order[:-1], strict=True))
        return _condition(name, True, "the path: each token reads the one before it, in some layer", pairs=pairs)
    found = search.obstruction
    shows = "not decided" if found is None else str(found)
    holds = None if found is None else False
    if isinstance(found, TooFewPredecessors):
        return _condition(name, holds, shows, rows=found.tokens.tolist(), columns=found.predecessors.tolist())
    if isinstance(found, Unconnected):
        pairs = [(found.first, found.second), (found.second, found.first)]
        return _condition(name, holds, shows, pairs=pairs)
    if isinstance(found, Separator):
        return _condition(name, holds, shows, rows=found.removed.tolist(), columns=found.removed.tolist())
    return _condition(name, holds, shows)


def _reach(certificate: Certificate) -> dict[str, Any]:
    name, reach = "Every token reached", certificate.reach
    if reach.hops is not None:
        layers = f"{reach.hops:,} layer{'s' * (reach.hops > 1)}"
        if reach.straggler is None or reach.hops == 1:
            return _condition(name, True, f"after {layers} every token depends on every token")
        query, key = reach.straggler
        shows = f"after {layers}; one layer earlier, {query} does not depend on {key}"
        return _condition(name, True, shows, pairs=[reach.straggler])
    if reach.never is not None:
        query, key = reach.never.query, reach.never.key
        return _condition(name, False, f"token {query} never depends on token {key}", pairs=[(query, key)])
    holds = False if reach.repeats else None
    return _condition(
        name, holds, "the layers repeat and never connect all pairs at once" if holds is False else "not decided"
    )
