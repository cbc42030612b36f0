"""Cross attention by a pattern: queries of another sequence, any number of them, against the oracle."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import oracle
import pytest
import strategies
import term_cases
import torch
from hypothesis import assume
from hypothesis import strategies as st
from kernel_cases import DTYPES_OF, Case, check, check_unread, cross_cases, has_compiler, implementations
from laws import check_spans, check_verdict
from oracle import rule
from plans import assert_plan_is
from refusals import refusing
from strategies import LENGTHS, TILES, build, hold, tiers
from term_cases import COMPUTES, TermCase, check_terms

from asterism import Alibi, Dropout, Terms, attend, compile_pattern, patterns
from asterism.cli.main import main
from asterism.compiler.liveness import FOREVER, last_reader
from asterism.errors import AsterismError, KernelError, PatternError
from asterism.kernels import cpu, decode, decode_slots, readable_keys
from asterism.patterns.across import queries_to_the_end

ALL = implementations(torch.float32)
QUERIES = (1, 2, 7, 16, 33, 64, 130, 200)


# --- the rule --------------------------------------------------------------------------------------------------------


def test_a_query_stands_at_its_place():
    """Two queries to three tokens, four tokens to a query; beyond the source a place is one all the same."""
    keys = [np.flatnonzero(row).tolist() for row in patterns.across(patterns.window(), "3/2").dense(7, 8)[0]]
    assert keys == [[0], [1], [3], [4], [6], [7], []]
    keys = [np.flatnonzero(row).tolist() for row in patterns.across(patterns.window(left=3), 4).dense(4, 6)[0]]
    assert keys == [[0], [1, 2, 3, 4], [5], []]


@st.composite
def _rectangles(draw, *, draws: bool = True):
    """A rule, numbers of queries and keys, and where the queries begin."""
    n_keys = draw(st.sampled_from(LENGTHS))
    drawn = draw(strategies.cross_rules(97, heads=3, depth=3))
    assume(draws or strategies.is_predictable(drawn))
    return drawn, draw(st.sampled_from(QUERIES)), n_keys, draw(st.one_of(st.none(), st.integers(0, 150)))


@pytest.mark.parametrize("count", tiers(13, 500))
def test_dense_is_the_predicate(count):
    def law(case):
        drawn, n_queries, n_keys, offset = case
        offset = oracle_offset(n_queries, n_keys, drawn) if offset is None else offset
        n_queries = min(n_queries, 40)
        expected = oracle.picture(drawn, n_queries, n_keys, offset)
        found = build(drawn).dense(n_queries, n_keys, offset)
        assert len(found) in (1, len(expected))  # BigBird whose heads draw nothing has one
        np.testing.assert_array_equal(np.broadcast_to(found, expected.shape), expected)

    hold(law, _rectangles(draws=False), count)


def oracle_offset(n_queries, n_keys, drawn):
    return 0 if "across" in drawn.names else max(n_keys - n_queries, 0)


@pytest.mark.parametrize("count", tiers(20, 1000))
def test_verdicts_and_spans_agree_with_the_picture(count):
    def law(case):
        (drawn, n_queries, n_keys, offset), data = case
        pattern, offset = build(drawn), offset or 0
        queries = data(strategies.ranges(n_queries))
        keys = data(strategies.ranges(n_keys))
        for head, picture in enumerate(pattern.dense(offset + n_queries, n_keys, 0)):
            asked = offset + queries[0], offset + queries[1]
            check_spans(pattern, picture, asked, n_keys, head)
            check_verdict(pattern, picture, asked, keys, n_keys, head)

    @st.composite
    def questions(draw):
        return draw(_rectangles()), draw

    hold(law, questions(), count)


@pytest.mark.parametrize("count", tiers(20, 1000))
def test_plans(count):
    def law(case):
        (drawn, n_queries, n_keys, offset), tile = case
        assert_plan_is(build(drawn), n_queries, n_keys, query_offset=offset, tile=tile)

    hold(law, st.tuples(_rectangles(), st.sampled_from((*TILES, 128, None))), count)


@pytest.mark.parametrize("count", tiers(13, 500))
def test_what_a_query_reads_follows_from_its_place(count):
    """Rows of one picture whatever the number of queries, and of the square where there is one key for each place."""

    def law(case):
        drawn, n_queries, n_keys, offset = case
        pattern, offset = build(drawn), offset or 0
        whole = pattern.dense(offset + n_queries, n_keys, 0)
        np.testing.assert_array_equal(pattern.dense(n_queries, n_keys, offset), whole[:, offset:])
        if not pattern.depends_on_length:
            longer = pattern.dense(offset + n_queries, n_keys + 30, 0)
            np.testing.assert_array_equal(longer[:, :, :n_keys], whole)

    of_any_length = _rectangles().filter(lambda case: not {"explicit", "tree"} & case[0].names)
    hold(law, of_any_length, count)


def test_work_grows_with_the_tiles_kept():
    """A window across a million keys from 250,000 queries; keys that all read are gathered, as they are in a square."""
    plan = compile_pattern("across(window(left=64, right=64) | columns(4096), step=4)", 2**18, 2**20, tile=64)
    near, gathered = plan.passes
    assert near.tiles <= 2**18 / 64 * 8 and gathered.tiles == 2**18 / 64 * 4
    assert gathered.layout == "keys columns(period=4096)"
    assert len(plan.masks) < 200  # one for each place that a column has in a tile
    halves = compile_pattern("across(window(left=64), step='1/2')", 2**20, 2**19, tile=64)
    assert halves.tiles <= 2**20 / 64 * 3 and len(halves.masks) < 10


@pytest.mark.parametrize("step", (3, "2/3", "7/3", "5/7", "3/2"))
@pytest.mark.parametrize("inner", ("window(left=9, right=3)", "global_queries((0, 5, 40)) | blocks(7)", "stride(250)"))
def test_tiles_of_every_kind(inner, step):
    """Masks that follow from where a floor was taken, queries named by their place, and strides beyond the source."""
    for n_queries, n_keys in ((200, 140), (330, 330)):
        assert_plan_is(patterns.across(patterns.parse(inner), step), n_queries, n_keys, tile=16)


@pytest.mark.parametrize("step", (1, 4, 3, 64, "1/2", "3/2", "7/3"))
@pytest.mark.parametrize("text", ("stride(64)", "stride(64) & causal()", "strided(32)"))
def test_strides_are_gathered(text, step):
    """Queries and keys sorted by the residue of their places fill tiles; in their natural order they touch all."""
    pattern = patterns.across(patterns.parse(text), step)
    for n_queries, n_keys, offset in ((600, 700, 0), (90, 700, 33), (700, 200, 5)):
        assert_plan_is(pattern, n_queries, n_keys, query_offset=offset, tile=16)
    plan = compile_pattern(pattern, 2048, 8192)
    assert any(part.layout.startswith("residues") for part in plan.passes)
    assert plan.tiles * plan.tile**2 < 5 * plan.pairs


def test_more_queries_than_keys():
    for text in ("dense()", "columns(3)", "global_keys((0, -1)) & ~columns(2)", "per_head([dense(), columns(2)])"):
        assert_plan_is(patterns.parse(text), 70, 20, tile=16)
        np.testing.assert_array_equal(patterns.parse(text).dense(9, 4)[:, 1:], patterns.parse(text).dense(8, 4))


def test_how_many_queries_reach_the_end():
    for step, n, expected in ((1, 10, 10), (4, 10, 3), ("3/2", 10, 7), ("1/2", 10, 20), ("2/3", 1, 2), (5, 0, 0)):
        pattern = patterns.across(patterns.dense(), step)
        assert queries_to_the_end(pattern, n) == expected
        assert [i for i in range(40) if i * Fraction(step) // 1 < n] == list(range(expected))
    assert queries_to_the_end(patterns.causal(), 7) == 7


# --- its text --------------------------------------------------------------------------------------------------------


def test_text():
    pattern = patterns.across(patterns.window(left=8) | patterns.columns(64), step="6/4")
    assert str(pattern) == "across(window(left=8) | columns(period=64), step='3/2')"
    assert patterns.parse(str(pattern)) == pattern
    assert str(patterns.across(patterns.dense(), "4")) == "across(dense(), step=4)"
    assert str(patterns.across(patterns.dense(), Fraction(5, 5))) == "across(dense())"
    schedule = "interleave(across(window(left=8), step=2), dense())"
    assert str(patterns.parse_schedule(schedule)) == schedule


@pytest.mark.parametrize(
    "step", (0, -1, "0", "-1/2", "1/0", "a", "", "1.5", 1.5, None, True, "1/2/3", 2**21, "1/9999999")
)
def test_no_step(step):
    with pytest.raises(PatternError, match="across: .*step") as refused:
        patterns.across(patterns.dense(), step)
    assert "\n" not in str(refused.value)


REFUSED = {
    "across twice": ("across(across(dense(), step=2), step=2)", "across"),
    "no pattern": ("across(3, step=2)", "inner"),
    "no inner": ("across(step=2)", "inner"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_such_pattern(name):
    text, word = REFUSED[name]
    with pytest.raises(PatternError, match=word):
        patterns.parse(text)


# --- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("poison")
class TestAttention:
    @pytest.mark.parametrize("count", tiers(23, 1000))
    @pytest.mark.parametrize("implementation", ALL)
    def test_generated_cases(self, implementation, count):
        hold(lambda case: check(case, implementation), cross_cases(DTYPES_OF[implementation]), count)

    @pytest.mark.parametrize("count", tiers(3, 200))
    @pytest.mark.parametrize("implementation", ALL)
    def test_output_alone(self, implementation, count):
        cases = cross_cases(DTYPES_OF[implementation])
        hold(lambda case: check(case, implementation, return_lse=False), cases, count)

    @pytest.mark.parametrize("count", tiers(3, 200))
    @pytest.mark.parametrize("implementation", ALL)
    def test_what_nobody_reads_changes_no_bit(self, implementation, count):
        sparse = cross_cases(DTYPES_OF[implementation]).map(
            lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2))
        )
        hold(lambda case: check_unread(case, implementation), sparse, count)

    @pytest.mark.parametrize("count", tiers(4, 300))
    @pytest.mark.parametrize("implementation", COMPUTES)
    def test_terms(self, implementation, count):
        hold(lambda chosen: check_terms(chosen, implementation), _terms(implementation), count)

    @pytest.mark.parametrize("implementation", ALL)
    def test_every_step(self, implementation):
        for step in (1, 2, 16, "3/2", "1/2", "7/3"):
            inner = rule("window", left=9, right=3) | rule("global_keys", positions=(0, -1))
            for n_queries, n_keys, offset in ((70, 40, None), (5, 200, 17), (40, 70, 3)):
                case = Case(oracle.across(inner, step), 4, 2, n_queries, n_keys, offset, padding=True)
                check(replace(case, dtype=DTYPES_OF[implementation][0]), implementation)


@st.composite
def _terms(draw, implementation) -> TermCase:
    chosen = draw(term_cases.term_cases(implementation))
    dtypes = COMPUTES[implementation][1]
    case = draw(cross_cases(dtypes))
    chosen = replace(chosen, case=case)
    if not strategies.steps_are_one(case.rule):
        return chosen.of(("softcap", "sinks", "dropout"))
    if chosen.relative:
        past = oracle.across(rule("causal"), 1)
        chosen = replace(chosen, case=replace(case, rule=case.rule & past))
    return chosen


def qkv(n_queries, n_keys, heads=2, kv_heads=1, width=8, batch=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    shapes = (batch, heads, n_queries, width), (batch, kv_heads, n_keys, width), (batch, kv_heads, n_keys, width)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


REFUSALS = {
    "segments": (dict(segments=torch.zeros(2, 30, dtype=torch.long)), "across(window(left=3), step=2)", "key_mask"),
    "segments, more queries": (dict(segments=torch.zeros(2, 30, dtype=torch.long)), "dense()", "key_mask"),
    "documents": (dict(cu_seqlens=[0, 30]), "across(window(left=3), step=2)", "same tokens"),
    "bias": (dict(terms=Terms(bias=Alibi(torch.ones(2)))), "across(window(left=3), step=2)", "other than 1"),
    "relative": (dict(terms=Terms(relative=torch.ones(50, 8))), "across(causal(), step='1/2')", "other than 1"),
    "self-attention": ({}, "window(left=3)", r"40 queries.*30 positions.*across"),
    "in documents": ({}, "documents(across(dense(), step=2), 30)", "40 queries"),
    "beside self-attention": ({}, "across(dense(), step=2) | window(left=3)", "40 queries"),
    "before the first": (dict(query_offset=-1), "dense()", "first query at -1"),
    "heads": ({}, "across(per_head([dense(), dense(), dense()]), step=2)", "heads"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    keywords, text, words = REFUSALS[name]
    with pytest.raises(AsterismError, match=words) as refused:
        attend(*qkv(40, 30), text, **keywords)
    assert "\n" not in str(refused.value)


def test_terms_that_go_by_no_distance_are_computed_at_any_step():
    terms = Terms(softcap=2.0, sinks=torch.zeros(2), dropout=Dropout(0.2, 3))
    tensors = qkv(40, 30)
    found = [
        attend(*tensors, "across(window(left=5), step='3/4')", terms=terms, implementation=name)
        for name in ("eager", "reference")
    ]
    torch.testing.assert_close(*found)


def test_documents_in_a_row_read_documents_in_a_row():
    """Equal lengths on both sides: cu_seqlens cuts queries and keys alike."""
    q, k, v = qkv(50, 50)
    pattern = "across(window(left=5), step='3/4')"
    found = attend(q, k, v, pattern, cu_seqlens=[0, 20, 50])
    parts = [attend(*(x[:, :, a:b] for x in (q, k, v)), pattern) for a, b in ((0, 20), (20, 50))]
    torch.testing.assert_close(found, torch.cat(parts, dim=2))


# --- a decoder with a cache ------------------------------------------------------------------------------------------

CROSS = (
    "across(window(left=9, right=9) | columns(8), step=4)",
    "across(bigbird(block=8, heads=2), step='5/2')",
    "dense()",
    "across(documents(causal(), 20, 30, 10), step=2)",
)


@pytest.mark.parametrize("text", CROSS)
def test_decoding_token_by_token(text):
    """With query_offset, and with the keys that a query may read, everything is as for all queries at once."""
    q, k, v = qkv(30, 60, dtype=torch.float64)
    mask = torch.arange(60) < torch.tensor([[60], [41]])
    expected = attend(q, k, v, text, key_mask=mask, query_offset=0)
    rule = patterns.parse(text)
    for i in range(30):
        one = q[:, :, i : i + 1]
        allowed = readable_keys(text, torch.tensor([[i]]), 60)
        np.testing.assert_array_equal(allowed[0], rule.dense(1, 60, i))
        for found in (
            attend(one, k, v, text, key_mask=mask, query_offset=i),
            decode_slots(one, k, v, allowed & mask[:, None, None]),
        ):
            torch.testing.assert_close(found, expected[:, :, i : i + 1])


def test_rows_that_are_at_different_tokens():
    """Beams and padded rows: a row of positions for each row of the batch."""
    asked = torch.tensor([[0, 5], [7, 30]])
    found = readable_keys("across(window(left=3), step=2)", asked, 20)
    rule = patterns.parse("across(window(left=3), step=2)")
    expected = [[rule.dense(1, 20, i)[0, 0] for i in row] for row in asked.tolist()]
    np.testing.assert_array_equal(found[:, 0], expected)


def test_the_door_for_caches_knows_the_places():
    """A source without its padding, some of it in other slots: positions say where its tokens stand."""
    q, k, v = qkv(6, 40, dtype=torch.float64)
    expected = attend(q, k, v, "across(window(left=9), step=3)", query_offset=4)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    asked = torch.arange(4, 10)[None]
    found = decode(q, k[:, :, order], v[:, :, order], "across(window(left=9), step=3)", asked, order[None])
    torch.testing.assert_close(found, expected)
    with refusing(KernelError, "terms-across"):
        terms = Terms(bias=Alibi(torch.ones(2, dtype=torch.float64)))
        decode(q, k, v, "across(window(left=9), step=3)", asked, order[None], terms=terms)


def test_readable_keys_of_self_attention_are_refused():
    with refusing(PatternError, "across-needed", "causal()"):
        readable_keys("causal()", torch.tensor([[3]]), 10)


@pytest.mark.parametrize("text", (*CROSS, "across(window(left=9), step='2/3')", "across(blocks(8, right=1), step=5)"))
def test_a_cache_may_forget_what_no_later_query_reads(text):
    pattern = patterns.parse(text)
    found = last_reader(pattern, np.arange(60))
    picture = pattern.dense(400, 60, 0).any(0)
    seen = np.where(picture, np.arange(400)[:, None], -1).max(0)
    assert (found >= seen).all()
    if "window(left=9)," in text or "blocks" in text:
        np.testing.assert_array_equal(found, seen)
    if "bigbird" in text or text == "dense()":
        assert (found == FOREVER).all()


# --- full cross attention --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", ((1, 300), (7, 300), (300, 40), (64, 64)))
@pytest.mark.parametrize("implementation", ALL)
def test_full_cross_attention_of_padded_sources(implementation, lengths):
    for seed, padding in ((0, True), (1, False)):
        case = Case(rule("dense"), 4, 2, *lengths, batch=3, width=16, value_width=16, padding=padding, seed=seed)
        check(replace(case, dtype=DTYPES_OF[implementation][0]), implementation, return_lse=False)


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("padded", (False, True))
def test_a_few_queries_are_decoded(dtype, padded, monkeypatch):
    """Where no gradient is asked for: the fastest way, whose answer is that of tiles."""
    decoded = []
    run = cpu.DECODING.run
    monkeypatch.setattr(type(cpu.DECODING), "run", lambda self, operands: decoded.append(operands) or run(operands))
    mask = torch.arange(300) < torch.tensor([[300], [0]]) if padded else None
    for n_queries, few in ((1, True), (8, True), (9, False)):
        tensors = qkv(n_queries, 300, dtype=dtype)
        out, lse = attend(*tensors, "dense()", key_mask=mask, return_lse=True)
        assert bool(decoded) == few
        expected = attend(*tensors, "dense()", key_mask=mask, return_lse=True, implementation="reference")
        torch.testing.assert_close((out, lse), expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2)
        decoded.clear()
    attend(*(x.requires_grad_() for x in qkv(2, 300, dtype=dtype)), "dense()").sum().backward()
    attend(*qkv(2, 300, dtype=dtype), "dense()", segments=torch.zeros(2, 300, dtype=torch.long))
    attend(*qkv(2, 300, dtype=dtype), "dense()", terms=Terms(softcap=3.0))
    assert not decoded


def test_a_source_that_is_padding_only_gives_nothing():
    q, k, v = (x.requires_grad_() for x in qkv(5, 20))
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, :7] = True
    k.data[1], v.data[0, :, 7:] = math.nan, math.inf
    out = attend(q, k, v, "dense()", key_mask=mask)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert not out[1].any() and out[0].all() and all(torch.isfinite(x).all() for x in (out, *gradients))
    assert not gradients[2][0, :, 7:].any()


# --- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ("across(window(left=9) | columns(7), step='3/2')", "dense()"))
def test_in_a_graph(text):
    """The default place of the queries is that outside of one, also where lengths are symbols."""
    compiled = torch.compile(lambda *tensors: attend(*tensors, text), backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ((20, 33), (33, 20), (40, 21)):
        tensors = qkv(*lengths)
        torch.testing.assert_close(compiled(*tensors), attend(*tensors, text))


# --- shown -----------------------------------------------------------------------------------------------------------


def test_show_and_plan(capsys: pytest.CaptureFixture[str]):
    """Of a schedule, each pattern with as many queries as stand in the source."""
    schedule = "interleave(across(window(left=3), step=4), dense())"
    assert main(["show", schedule, "-n", "16"]) == 0
    shown = capsys.readouterr().out
    assert "across(window(left=3), step=4), 4 queries of 16 tokens\n█···············\n·████···········\n" in shown
    assert "degrees: a query reads 1 to 4 keys, 3.2 on average\ndensity: 20.31% of the pairs\n" in shown
    assert "dense(), 16 tokens\n" in shown
    assert main(["plan", schedule, "-n", "4096", "--queries", "100"]) == 0
    assert capsys.readouterr().out.count("100 queries x 4,096 keys") == 2
    assert main(["show", schedule, "-n", "16", "--queries", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["mixers"]
    assert [row["plan"]["pairs"] for row in rows] == [5, 32]
