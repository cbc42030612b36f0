"""A certificate in words and as plain values."""

from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from asterism.theory.certificates.witnesses import Hub, MissingLoop, NoHub

if TYPE_CHECKING:
    from asterism.theory.certificates.universality import Certificate

_SHOWN = 4
"""The most patterns and heads for which the text explains why they contain no star."""

_WORDS = {True: "yes", False: "no", None: "not decided"}


def explain(certificate: "Certificate") -> str:
    """One line per condition, each with its witness or counterexample; then connections and layers."""
    n, reach = certificate.n, certificate.reach
    lines = [
        f"{certificate.schedule}, {n:,} tokens",
        "",
        _line("star (Zaheer 2020, Theorem 1)", certificate.star, _star(certificate)),
        _line("Assumption 1 (Yun 2020, Theorem 1)", certificate.yun, "the three conditions below"),
        _line("  1 every token reads itself", certificate.self_loops, _loops(certificate)),
        _line("  2 Hamiltonian path in the union", certificate.hamiltonian_path, _path(certificate)),
        _line("  3 every token reached", certificate.full_reach, _reach(certificate)),
        "",
    ]
    for number, edges in enumerate(certificate.connections, start=1):
        place = f"pattern {number}: " if len(certificate.connections) > 1 else ""
        lines.append(f"connections    {place}{edges:,} per layer, {edges / n:,.1f} keys per token, {edges / n**2:.2%}")
    if reach.fractions:
        shown = reach.fractions if len(reach.fractions) <= 6 else (*reach.fractions[:3], reach.fractions[-1])
        shares = [f"{share:.2%}" for share in shown]
        if len(shown) < len(reach.fractions):
            shares.insert(3, "...")
        span = f"1 to {reach.layers:,} layers" if reach.layers > 1 else "1 layer"
        lines.append(f"pairs reached  {', '.join(shares)} after {span}")
    return "\n".join(lines)


def summary(certificate: "Certificate") -> dict[str, object]:
    """Answers, witnesses, counterexamples and figures. None means undecided, or that no such thing exists.

    Everything is counted from 0, also the patterns of the cycle. Sets of tokens are lists.
    """
    path, reach, hub = certificate.path, certificate.reach, certificate.hub
    return {
        "schedule": certificate.schedule.text,
        "length": certificate.n,
        "star": certificate.star,
        "hub": _place(hub) if isinstance(hub, Hub) else None,
        "missing_spokes": _missing_spokes(hub) if isinstance(hub, NoHub) else None,
        "yun": certificate.yun,
        "self_loops": certificate.self_loops,
        "missing_loop": _place(certificate.missing_loop) if certificate.missing_loop else None,
        "hamiltonian_path": certificate.hamiltonian_path,
        "gamma": _plain(path.path),
        "obstruction": None if path.obstruction is None else {"text": str(path.obstruction)} | _plain(path.obstruction),
        "tried": list(path.tried),
        "left_out": list(path.left_out),
        "full_reach": certificate.full_reach,
        "hops": reach.hops,
        "straggler": reach.straggler,
        "never": _plain(reach.never),
        "connections": list(certificate.connections),
        "pairs_reached": list(reach.fractions),
        "small_world": asdict(certificate.small_world),
    }


def _place(found: Hub | MissingLoop) -> dict[str, int]:
    return {"pattern_index": found.pattern, "head": found.head, "token": found.token}


def _missing_spokes(hub: NoHub) -> list[dict[str, object]]:
    """For each pattern and head a pair (query, key) per token, which the star with that token as its hub lacks."""
    return [
        {"pattern_index": pattern, "head": head, "pairs": pairs.tolist()}
        for (pattern, head), pairs in hub.missing.items()
    ]


def _plain(value: Any) -> Any:
    """A proof or its parts as plain values: its kind and its fields, and a set of tokens as their list."""
    if is_dataclass(value):
        return {"kind": type(value).__name__} | {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, np.ndarray):
        return (np.flatnonzero(value) if value.dtype == bool else value).tolist()
    return value


def _line(name: str, answer: bool | None, reason: str) -> str:
    return f"{name:<36}{_WORDS[answer]:<13}{reason}".rstrip()


def _star(certificate: "Certificate") -> str:
    hub = certificate.hub
    if isinstance(hub, Hub):
        return (
            f"hub {hub.token}{_where(certificate, hub.pattern, hub.head)} reads every token, and every token reads it"
        )
    reasons = []
    for (pattern, head), missing in hub.missing.items():
        token = int(certificate.graphs[pattern].out_degrees.argmax())
        query, key = missing[token].tolist()
        reasons.append(f"token {token}{_where(certificate, pattern, head)} is not, since {query} does not read {key}")
    more = [f"{len(reasons) - _SHOWN:,} more"] if len(reasons) > _SHOWN else []
    return "; ".join(["no token is a hub", *reasons[:_SHOWN], *more])


def _loops(certificate: "Certificate") -> str:
    missing = certificate.missing_loop
    if missing is None:
        return "in every pattern of the cycle" if certificate.schedule.period > 1 else ""
    return f"token {missing.token} does not{_where(certificate, missing.pattern, missing.head)}"


def _path(certificate: "Certificate") -> str:
    search = certificate.path
    if search.obstruction is not None:
        return str(search.obstruction)
    if search.path is None:
        left_out = (
            f"; skipped, because the graph has too many edges: {'; '.join(search.left_out)}" if search.left_out else ""
        )
        return f"tried {'; '.join(search.tried)}{left_out}"
    ends = [str(token) for token in search.path.tolist()]
    shown = ", ".join(ends if len(ends) <= 8 else [*ends[:4], "...", *ends[-2:]])
    return f"gamma = {shown} ({search.tried[-1]})"


def _reach(certificate: "Certificate") -> str:
    reach = certificate.reach
    if reach.hops is not None:
        query, key = reach.straggler or (0, 0)
        before = f": {query} does not depend on {key} after {reach.hops - 1:,}" if reach.hops > 1 else ""
        return f"s = {reach.hops:,} layer{'s' * (reach.hops > 1)}{before}"
    if reach.never is not None:
        query, key = reach.never.query, reach.never.key
        causal = all(pattern.is_causal for pattern in certificate.schedule.patterns)
        reason = ", since no token reads a later one" if causal else ""
        return f"token {query} never depends on token {key}, after any number of layers{reason}"
    if reach.repeats:
        return f"the layers repeat within {reach.layers:,} and never connect all pairs at once"
    return f"{reach.layers:,} layers followed; a token that does not read itself can lose what it had"


def _where(certificate: "Certificate", pattern: int, head: int) -> str:
    """Which pattern and head are meant, where there are several."""
    places = [f"pattern {pattern + 1}"] if certificate.schedule.period > 1 else []
    places += [f"head {head}"] if certificate.schedule.patterns[pattern].heads > 1 else []
    return f" of {', '.join(places)}" if places else ""
