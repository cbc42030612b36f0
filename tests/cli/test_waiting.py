"""Signs of life: on a terminal a line with the seconds, which leaves no trace; elsewhere nothing."""

import io
import sys
import time

import pytest

from asterism.cli.output import say
from asterism.cli.waiting import waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(text: str) -> list[str]:
    """The lines of a terminal that gets the text: the last line is what stays below them."""
    lines = [""]
    for word in text.replace("\r\x1b[K", "\0").replace("\n", "\1").replace("\0", "\n\0").split("\n"):
        if word.startswith("\0"):
            lines[-1], word = "", word[1:]
        first, *others = word.split("\1")
        lines[-1] += first
        lines += others
    return lines


def test_a_line_moves_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting("thinking"):
        assert seen(stream.getvalue()) == ["| thinking"]  # at once: an import keeps the thread from drawing
        time.sleep(1.2)
        assert "thinking (1 s)" in seen(stream.getvalue())[-1]
        say("a line that stays")
        assert seen(stream.getvalue())[0] == "a line that stays"
        assert "thinking" in seen(stream.getvalue())[1]
    assert seen(stream.getvalue()) == ["a line that stays", ""]
    say("another")
    assert seen(stream.getvalue()) == ["a line that stays", "another", ""]


def test_it_ends_with_an_error(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(KeyError), waiting("thinking"):
        raise KeyError
    assert seen(stream.getvalue()) == [""]


def test_nothing_is_shown_elsewhere_or_by_a_follower(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with waiting("thinking"):
        say("a line")
    assert stream.getvalue() == "a line\n"
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with waiting("thinking"):
        pass
    assert stream.getvalue() == ""


def test_waiting_within_waiting(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting("outside"):
        with waiting("inside"):
            assert seen(stream.getvalue())[-1] == "| inside"
            say("once")
        time.sleep(0.7)
        assert seen(stream.getvalue())[-1].endswith("outside")
    assert seen(stream.getvalue()) == ["once", ""]
