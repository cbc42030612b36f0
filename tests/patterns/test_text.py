"""The text form: `parse(str(p)) == p` for every pattern, and nothing but patterns can be written in it."""

import time

import numpy as np
import pytest
import strategies
from known_patterns import ALL, CAUSAL, NOT_CAUSAL, UNSTABLE, named
from oracle import Rule, rule
from refusals import refusing
from strategies import build, hold, tiers

from asterism import patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.patterns.text import bind, mentions

MERGED = "merge(window(left=2), stride(5))"
SPLIT = "split_heads(window(left=2), stride(5), heads=4)"


def assert_round_trip(pattern):
    again = patterns.parse(str(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert (again.text, str(again)) == (pattern.text, str(pattern))
    assert patterns.parse(pattern.text) == pattern
    assert "\n" not in pattern.text


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_round_trip(drawn):
    assert_round_trip(build(drawn))


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_what_a_person_writes(drawn):
    """The oracle's own spelling, with every argument by name, is the same pattern."""
    assert patterns.parse(drawn.text) == build(drawn)


@pytest.mark.parametrize("text", [*CAUSAL, *NOT_CAUSAL, *UNSTABLE, MERGED, SPLIT, "random_blocks(4, 1, avoid=(0, -1))"])
def test_round_trip_of_text(text):
    assert_round_trip(patterns.parse(text))


@pytest.mark.parametrize("count", tiers(50, 1000))
def test_round_trip_of_compositions(count):
    def law(drawn: Rule):
        assert_round_trip(build(drawn))
        assert patterns.parse(drawn.text) == build(drawn)

    hold(law, strategies.rules(97, heads=3), count)


def test_round_trip_of_sources():
    for source in (np.eye(5, dtype=bool), np.zeros((3, 3), dtype=bool), np.array([[0, 3], [7, 1]])):
        assert_round_trip(patterns.explicit(source))


def test_defaults_may_be_left_out_and_order_is_free():
    assert patterns.parse("window(right=1, left=2)") == patterns.window(2, 1)
    assert patterns.parse("bigbird()") == patterns.bigbird()
    assert patterns.parse("  window ( 2 ,\t1 ) ") == patterns.window(2, 1)
    assert patterns.parse("global_tokens(0)") == patterns.parse("global_tokens([0])") == patterns.global_tokens((0,))


def test_operators_bind_as_in_python():
    one, two, three = patterns.causal(), patterns.stride(2), patterns.window(3)
    assert patterns.parse("causal() | stride(2) & ~window(3)") == one | two & ~three
    assert patterns.parse("(causal() | stride(2)) & window(3)") == (one | two) & three


def test_merge_and_split_heads_in_text():
    assert patterns.parse(MERGED) == patterns.merge(patterns.window(2), patterns.stride(5))
    assert patterns.parse(SPLIT) == patterns.split_heads(patterns.window(2), patterns.stride(5), heads=4)


REFUSED = [
    "",
    "   ",
    "\n",
    "1",
    "None",
    "'causal()'",
    "causal",
    "(causal(), dense())",
    "[causal()]",
    "{causal()}",
    "causal()()",
    "causal().heads",
    "causal().__class__",
    "patterns.causal()",
    "causal() and dense()",
    "not causal()",
    "causal() + dense()",
    "causal() ^ dense()",
    "causal() - dense()",
    "-causal()",
    "causal() == dense()",
    "causal() < dense()",
    "causal() if 1 else dense()",
    "causal() | 1",
    "1 | 2",
    "~1",
    "lambda: causal()",
    "(lambda: causal())()",
    "f'{causal()}'",
    "window(left=f'{1}')",
    "[causal() for x in (1, 2)][0]",
    "per_head([causal() for x in (1, 2)])",
    "per_head(causal() for x in (1, 2))",
    "(x := causal())",
    "await causal()",
    "causal(); dense()",
    "causal()\ndense()",
    "import os",
    "__import__('os')",
    "__import__('os').system('true')",
    "window(left=__import__('os').getpid())",
    "eval('causal()')",
    "getattr(causal(), 'heads')",
    "window(left=(lambda: 1)())",
    "window(left=2 ** 70 ** 70)",
    "window(left=2 + 2)",
    "window(*[1])",
    "window(**{'left': 1})",
    "window(left=1, left=2)",
    "window(1, left=2)",
    "window(1, 2, 3, 4)",
    "causal(1)",
    "stride()",
    "random_blocks(4)",
    "window(left={1: 2})",
    "window(left='3')",
    "window(left=1.5)",
    "window(left=None)",
    "window(left=causal())",
    "global_tokens('0')",
    "shifted(1, by=2)",
    "shifted(causal())",
    "documents()",
    "documents(3, causal())",
    "documents(causal(), 3.5)",
    "documents(causal(), lengths=3)",
    "per_head(causal())",
    "per_head([])",
    "per_head([1])",
    "causal(",
    "causal())",
    "causal() |",
    "| causal()",
    "causal() dense()",
    "causal() # and more\n| dense()\n\\",
    "causal()\0",
    "window(left=1e3)",
    "window(left=...)",
    "window(left=1j)",
    "window(left=b'1')",
    "...",
    "bool(causal())",
    "Pattern()",
    "Or(causal(), dense())",
    "parse('causal()')",
    "build()",
    "interleave(causal(), dense())",
    "explicit('0:0')['a']",
    "explicit(open('/etc/hostname'))",
]


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_refused(text):
    with pytest.raises(PatternError) as refused:
        patterns.parse(text)
    message = str(refused.value)
    assert "\n" not in message
    assert message.strip()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("windw(left=2)", ("windw", "window")),
        ("causal() | strid(4)", ("strid", "stride")),
        ("bigbrid(block=4)", ("bigbrid", "bigbird")),
        ("Causal()", ("Causal", "causal")),
        ("window(lft=2)", ("lft", "left", "window")),
        ("bigbird(blok=4)", ("blok", "block", "bigbird")),
        ("fixed(stride=4, sumary=2)", ("sumary", "summary", "fixed")),
        ("window(left=-3)", ("left", "-3")),
        ("stride(0)", ("period", "0", "stride")),
        ("bigbird(block=-1)", ("block", "-1")),
        ("window(1, 2, 3, 4)", ("window", "positional", "left")),
        ("stride()", ("stride", "period")),
        ("causal() + dense()", ("|",)),
        ("causal() and dense()", ("&",)),
        ("causal() or dense()", ("|",)),
        ("not causal()", ("~",)),
        ("per_head(window(left=2), causal())", ("one list", "write per_head([window(left=2), causal()])")),
        ("causal() | window(left=2", ("at character 18", "'(' was never closed")),
        ("window(left=2))", ("at character 15", "unmatched ')'")),
        ("causal", ("needs parentheses: write causal()",)),
        ("stride", ("needs parentheses: write stride(...)",)),
    ],
)
def test_the_message_names_what_was_asked_and_what_is_near(text, parts):
    with pytest.raises(PatternError) as refused:
        patterns.parse(text)
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "text",
    [
        "~" * 100_000 + "causal()",
        "(" * 100_000 + "causal()" + ")" * 100_000,
        "shifted(" * 20_000 + "causal()" + ", 1)" * 20_000,
        "per_head([" * 5_000 + "causal()" + "])" * 5_000,
        "global_tokens(" + "(" * 50_000 + "0" + ")" * 50_000 + ")",
        "window(left=" + "9" * 1_000_000 + ")",
        "window(left=" + "-" * 100_000 + "1)",
        " | ".join(["causal()"] * 100_000),
        "window(left=" + "9" * 4_000 + ")",
        "window(left='" + "9" * 1_000_000 + "')",
        "x" * 1_000_000,
        "causal(" + "x" * 1_000_000 + "=1)",
        "causal() | '" + "x" * 1_000_000 + "'",
        "explicit(" + "[" * 80 + "]" * 80 + ")",
        "explicit('0:0-999999999')",
        "explicit('0:" + ",".join(["0-99999999"] * 100) + "')",
    ],
    ids=(
        *("complements", "parentheses", "shifts", "heads", "tuples", "digits", "signs", "union", "readable digits"),
        *("text", "name", "argument", "operand", "lists", "run", "runs"),
    ),
)
def test_monsters_are_refused_quickly(text):
    started = time.process_time()
    with pytest.raises(PatternError) as refused:
        patterns.parse(text)
    assert time.process_time() - started < 5
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ("bigbird(block=4, window=5, random=1)", "bigbird(block=4, window_blocks=5, random=1)"),
        ("bigbird_etc(block=4, window=1)", "bigbird_etc(block=4, window_blocks=1)"),
        ("bigbird_causal(window=3) & causal()", "bigbird_causal() & causal()"),
        ("random_blocks(8, 3, seed=1, window=-1, avoid=(0,))", "random_blocks(8, 3, seed=1, avoid=(0,))"),
        ("random_blocks(8, 3, window=0)", "random_blocks(8, 3, window_blocks=1)"),
        ("random_blocks(8, 3, window=2)", "random_blocks(8, 3, window_blocks=5)"),
    ],
)
def test_arguments_are_read_under_the_names_that_they_had(older, today):
    """Saved models hold such texts: random_blocks counted blocks to each side, and -1 stood for none."""
    assert patterns.parse(older) == patterns.parse(today)
    assert "window=" not in patterns.parse(older).text


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("bigbird(window=2)", "window-even", "2"),
        ("bigbird(window=3, window_blocks=3)", "argument-twice", "window_blocks"),
        ("random_blocks(8, 3, window=-2)", "below-minimum", "-3"),
        ("random_blocks(8, 3, window=True)", "not-a-whole-number", "True"),
        ("random_blocks(8, 3, 0, 1, False, 1)", "bad-argument", "positional"),
        ("fixed(8, window=2)", "unknown-argument", "window"),
    ],
)
def test_arguments_under_the_names_that_they_had_are_checked(text, code, value):
    with refusing(PatternError, code, value):
        patterns.parse(text)


@pytest.mark.parametrize("depth", (2, 10, 30))
def test_reasonable_nesting_is_accepted(depth):
    assert_round_trip(patterns.parse("~" * depth + "causal()"))
    assert_round_trip(patterns.parse("shifted(" * depth + "causal()" + ", by=1)" * depth))
    assert_round_trip(patterns.parse(" | ".join(f"window(left={i})" for i in range(depth))))
    assert_round_trip(patterns.parse("(" * depth + "causal()" + ")" * depth))


def test_parsing_runs_nothing(monkeypatch):
    """The text goes through no evaluator of Python's."""
    import builtins

    def forbidden(*arguments, **keywords):
        raise AssertionError("evaluated")

    for name in ("eval", "exec", "__import__"):
        monkeypatch.setattr(builtins, name, forbidden)
    try:
        pattern = patterns.parse("fixed(stride=8, summary=2) | ~window(left=3) & shifted(causal(), by=2)")
    finally:
        monkeypatch.undo()
    assert pattern.heads == 1


@pytest.mark.parametrize("count", tiers(75, 3000))
def test_no_text_escapes_as_another_error(count):
    """Damaged text is a pattern or a PatternError, never anything else."""
    from hypothesis import strategies as st

    pieces = st.lists(
        st.sampled_from(
            [
                *"()[]{},=|&~-+*.:;'\" \n\t\\0123456789#@",
                *(
                    "causal",
                    "window",
                    "left=",
                    "per_head",
                    "shifted",
                    "documents(causal(), -1, ",
                    "explicit",
                    "heads=",
                    "lambda",
                    "f'",
                    "explicit('",
                ),
                *("~causal()", "window(1)", "None", "True", "é", "\x00", "​"),
            ]
        ),
        max_size=12,
    ).map("".join)

    def law(text: str):
        try:
            pattern = patterns.parse(text)
        except PatternError as refused:
            assert "\n" not in str(refused)
        else:
            assert patterns.parse(pattern.text) == pattern

    hold(law, st.one_of(pieces, st.text(max_size=12)), count)


# ---------------------------------------------------------------------------------------------------------------------
# Schedules.


@pytest.mark.parametrize(
    "text",
    [
        "interleave(window(left=127), stride(period=128) & causal())",
        "interleave(causal(), fixed(8, heads=2), bigbird_causal(block=4))",
        "causal()",
        "fixed(stride=8) | window(left=3)",
        SPLIT,
    ],
)
def test_schedules_round_trip(text):
    schedule = patterns.parse_schedule(text)
    assert isinstance(schedule, patterns.Schedule)
    assert patterns.parse_schedule(str(schedule)) == schedule


def test_a_schedule_from_text_is_the_schedule_from_python():
    first, second = patterns.window(left=127), patterns.stride(period=128) & patterns.causal()
    parsed = patterns.parse_schedule("interleave(window(left=127), stride(period=128) & causal())")
    assert parsed == patterns.interleave(first, second)
    assert (parsed.period, parsed.layer(0), parsed.layer(3)) == (2, first, second)


def test_a_plain_pattern_is_a_schedule_of_period_one():
    schedule = patterns.parse_schedule("fixed(8)")
    assert schedule.period == 1
    assert schedule.layer(0) == schedule.layer(7) == patterns.fixed(8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "interleave()",
        "interleave(1)",
        "interleave(causal()) | dense()",
        "interleave(interleave(causal()), dense())",
        "merge(interleave(causal()), dense())",
        "interleave(causal(), dense(), layers=3)",
        "interleave(*[causal()])",
        "interleav(causal())",
        "split_heads(causal(), dense(), heads=3)",
        "split_heads(causal(), dense())",
        "__import__('os')",
    ],
)
def test_schedules_refused(text):
    with pytest.raises(PatternError) as refused:
        patterns.parse_schedule(text)
    assert "\n" not in str(refused.value)


def test_a_rule_reads_as_text():
    """The oracle's spelling is what the tests above believe it is."""
    drawn = rule("window", left=2) | ~rule("stride", period=3) & rule("causal")
    assert drawn.text == "(window(left=2) | (~stride(period=3) & causal()))"


# --------------------------------------------------------------------------------------------------------------------
# Mixers, and whatever a user gives.


@pytest.mark.parametrize("text", ("fourier()", "interleave(fourier(), causal(), fourier())"))
def test_schedules_with_fourier_round_trip(text):
    schedule = patterns.parse_schedule(text)
    assert str(schedule) == text and patterns.as_schedule(schedule) is schedule
    assert schedule.layer(0) == schedule.layer(schedule.period) == patterns.Fourier()
    with refusing(PatternError, "transform-not-a-pattern", "fourier()"):
        schedule.patterns  # noqa: B018


@pytest.mark.parametrize("text", ("linear()", "linear(learned=False)", "interleave(linear(), causal(), fourier())"))
def test_schedules_with_linear_mixing_round_trip(text):
    schedule = patterns.parse_schedule(text)
    assert str(schedule) == text == schedule.text
    assert schedule.layer(0) == patterns.Linear(learned="False" not in text) == schedule.transforms[0]
    assert patterns.parse_schedule("linear(learned=True)").text == "linear()"
    with refusing(PatternError, "transform-not-a-pattern", "linear("):
        schedule.patterns  # noqa: B018


@pytest.mark.parametrize(
    "text",
    (
        "linear(8)",
        "linear(learned=1)",
        "linear(learned=True, learned=False)",
        "linear(tokens=8)",
        "linear() | causal()",
    ),
)
def test_linear_mixing_is_no_pattern_and_takes_no_other_argument(text):
    with refusing(PatternError, "transform-not-alone", "linear() takes no argument but learned=False"):
        patterns.parse_schedule(text)


@pytest.mark.parametrize("text", ("fourier()", "fourier() | causal()", "~fourier()", "merge(causal(), fourier())"))
def test_fourier_is_no_pattern(text):
    with refusing(PatternError, "transform-not-alone"):
        patterns.parse(text)


@pytest.mark.parametrize("text", ("fourier(1)", "interleave(fourier(axis=1))", "interleave(causal() | fourier())"))
def test_fourier_takes_nothing(text):
    with refusing(PatternError, "transform-not-alone"):
        patterns.parse_schedule(text)


def test_the_nearest_name_may_be_that_of_a_mixer():
    with refusing(PatternError, "unknown-pattern", "'fouriers'", " Did you mean 'fourier'?"):
        patterns.parse_schedule("fouriers()")


def test_one_reader_of_whatever_is_given():
    window, star = patterns.window(left=2), patterns.star()
    for given in (window, window.text, patterns.interleave(window), [window], (window.text,)):
        assert patterns.as_schedule(given) == patterns.Schedule((window,))
    for given in ("interleave(window(left=2), star(), fourier())", [window, "star()", "fourier()"]):
        assert patterns.as_schedule(given).mixers == (window, star, patterns.Fourier())
        assert patterns.layer_mixers(given, 3) == (window, star, patterns.Fourier())
    assert patterns.layer_mixers("interleave(window(left=2), star())", 3) == (window, star, window)
    assert patterns.layer_mixers(star, 2) == (star, star)


@pytest.mark.parametrize("given", (None, 3, [3], [[patterns.star()]], {"star()"}, ["interleave(star())"], []))
def test_what_is_no_schedule(given):
    with pytest.raises(PatternError, match=r"^[^\n]+$"):
        patterns.as_schedule(given)


def test_a_list_has_one_mixer_for_each_layer():
    with refusing(ConfigurationError, "patterns-per-layer", "2", "3"):
        patterns.layer_mixers(["star()", "dense()"], 3)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("native", "window(left=3, right=0, dilation=1)"),
        ("native()", "window(left=3, right=0, dilation=1)"),
        ("~native | causal()", "~window(left=3, right=0, dilation=1) | causal()"),
        (
            "interleave(native & causal(), dense())",
            "interleave(window(left=3, right=0, dilation=1) & causal(), dense())",
        ),
        (
            "per_head([native, native()])",
            "per_head([window(left=3, right=0, dilation=1), window(left=3, right=0, dilation=1)])",
        ),
        ("causal()", "causal()"),
        ("native(3)", "native(3)"),
        ("native |", "native |"),
    ],
)
def test_a_name_stands_for_a_pattern(text: str, bound: str) -> None:
    assert bind(text, "native", patterns.window(3)) == bound


def test_a_union_that_a_name_stands_for_stays_together() -> None:
    union = patterns.window(1) | patterns.columns(4)
    bound = bind("native & causal()", "native", union)
    assert patterns.parse(bound) == union & patterns.causal()


def test_names_are_found_and_strings_are_none() -> None:
    assert mentions("interleave(window(3), native)", "native") and mentions("native()", "native")
    assert not mentions("across(window(3), step='native')", "native") and not mentions("native |", "native")
