"""Splits a pattern into a union of conjunctions, so that each can have its densest token order."""

from functools import reduce
from itertools import product
from math import prod

import numpy as np

from asterism.compiler.parts import asked_of
from asterism.patterns.across import Across
from asterism.patterns.part import Part
from asterism.patterns.pattern import And, Named, Not, Or, Pattern, PerHead, Shifted
from asterism.patterns.primitives import Dense, KeySet, Stride, Window

_MOST_TERMS = 16
"""Above so many terms a conjunction of unions is left as it is."""


def concrete(rule: Pattern, head: int, extent: int) -> Pattern:
    """The rule of one head, without names; a stride that never comes round is the token itself.

    All queries and keys stand before the position `extent`.
    """
    match rule:
        case PerHead(patterns=parts):
            return concrete(parts[head], head, extent)
        case Named(body=body):
            return concrete(body, head, extent)
        case Stride(period=period) if period >= extent:
            return Window()  # sorting by residue would be another pass, for one diagonal
        case Shifted(pattern=inner, by=by):
            return Shifted(concrete(inner, head, max(extent - by, 1)), by)  # 1: rules are not asked about no tokens
        case Across(inner=inner):
            furthest = int(rule.places(np.array(max(extent, 1) - 1)))
            return _across(rule, concrete(inner, head, max(extent, furthest + 1)))
        case Part(inner=inner, length=length, queries=queries):
            return asked_of(rule, concrete(inner, head, max(length, queries.past, 1)))
        case _ if rule.children:
            return rule.rebuild(tuple(concrete(child, head, extent) for child in rule.children))
        case _:
            return rule


def _across(around: Across, inner: Pattern) -> Pattern:
    """`inner` asked across, with every leaf by itself: then unions have terms, and keys that all read are gathered."""
    match inner:
        case Or() | And() | Not():
            return inner.rebuild(tuple(_across(around, child) for child in inner.children))
        case Dense() | KeySet():
            return inner  # whatever the query
        case _:
            return around.rebuild((inner,))


def terms_of(rule: Pattern) -> list[Pattern]:
    """Conjunctions whose union is the rule."""
    match rule:
        case Or(parts=parts):
            return [term for part in parts for term in terms_of(part)]
        case And(parts=parts):
            factors = [terms_of(part) for part in parts]
            # (a | b) & (c | d) has 4 terms and ten such factors 1024: then one layout for all is the lesser evil.
            if prod(len(factor) for factor in factors) > _MOST_TERMS:  # Python's integers: 2**63 has no int64
                return [rule]
            return [reduce(lambda a, b: a & b, choice) for choice in product(*factors)]
        case Not(part=And(parts=parts)):  # ~(a & b) is ~a | ~b
            return [term for part in parts for term in terms_of(~part)]
        case _:
            return [rule]
