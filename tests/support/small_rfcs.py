"""A small made-up RFC, as files of RFCs have it, and such a file."""

import json
import lzma
from collections.abc import Iterable
from pathlib import Path

SENTENCES = [
    "This document specifies the Toast Transfer Protocol, which moves toast between kitchens.",
    "A toaster is a host that makes toast, and a plate is a host that keeps it.",
    "Toast that is not eaten within an hour is lost, and nothing brings it back.",
    "The plate answers each slice of toast with a crumb, so that the toaster knows what arrived.",
]
FILLER = " ".join(
    f"Kitchens of size {size} need no more than one plate for every two of their cooks." for size in range(30)
)


def wrapped(text: str, indent: str = "   ") -> str:
    """Lines of at most 60 characters."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 60:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join(indent + one for one in [*lines, line])


BREAK = """


Baker                        Experimental                       [Page 1]
\f
RFC 9999                Toast Transfer Protocol                1 April 2031


"""

ABSTRACT = f"{SENTENCES[0]}  {SENTENCES[3]}"
RFC = f"""\ufeff



Network Working Group                                           A. Baker
Request for Comments: 9999                                     Toast Inc
Category: Experimental                                      1 April 2031


                        Toast Transfer Protocol

Status of This Memo

   This memo defines an Experimental Protocol for kitchens.

Abstract

{wrapped(ABSTRACT)}

Table of Contents

   1. Introduction ....................................................2
      1.1. Terms ......................................................2
   2. Crumbs ..........................................................3

Index of Toast ........................................................4
{BREAK}1.  Introduction

{wrapped("It is early. Nobody has eaten.")}

{wrapped(FILLER)}

1.1.  Terms

   A toaster is a host that makes toast, and
{BREAK}   a plate is a host that keeps it.  {SENTENCES[2]}

             +---------+          +-------+
             | toaster | -------> | plate |
             +---------+          +-------+

                      Figure 1: What is where

2.  Crumbs

{wrapped(SENTENCES[3])}  It may be a well-
   known crumb.

3.  References

   [1]  Baker, A., "Bread", RFC 9998, 2030.

Author's Address

   A. Baker
   EMail: baker@example.org
"""


def row(**changes) -> dict:
    status = "  This memo defines an Experimental Protocol for the Internet community."
    given = {"id": "rfc9999", "title": "Toast Transfer Protocol", "abstract": ABSTRACT + status, "text": RFC}
    return {**given, **changes}


def write_rfcs(path: Path, rows: Iterable[object]) -> Path:
    """A line for each row."""
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)
    return path
