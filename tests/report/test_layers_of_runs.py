import pytest

from asterism.patterns import parse
from asterism.patterns.draw import degrees
from asterism.report.layers import MOST_PICTURES, draw_layers

SHAPE = {"model_type": "asterism", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 4}


def test_layers_take_turns():
    found = draw_layers({**SHAPE, "mixers": "interleave(window(left=3), causal())"}, 64)
    assert [one.text for one in found.mixers] == ["window(left=3)", "causal()"]
    assert [list(one.numbers) for one in found.mixers] == [[0, 2], [1, 3]]
    assert [one.count for one in found.mixers] == [2, 2] and found.remark is None
    window, causal = found.mixers
    read = degrees(parse("window(left=3)"), 64)
    assert window.keys == (read.minimum, read.mean, read.maximum) and not window.is_about
    assert causal.density == pytest.approx(65 / 128)
    assert causal.flops == 4 * 65 * 64 / 2 * 8  # 4 for each pair and feature
    assert causal.pictures[0][0][0] == "2" and causal.pictures[0][0][1] == "0"


def test_long_sequences_are_counted_in_part():
    (one,) = draw_layers({**SHAPE, "mixers": "window(left=255)"}, 2**20).mixers
    assert one.is_about and one.keys[2] == 256 and len(one.pictures[0]) == 64


def test_heads_with_patterns_of_their_own_are_drawn():
    (one,) = draw_layers({**SHAPE, "mixers": "per_head(patterns=(window(left=1), causal()))"}, 16).mixers
    assert one.heads == 2 and len(one.pictures) == 2 and one.pictures[0] != one.pictures[1]


def test_decoders_and_transforms():
    shape = {**SHAPE, "mixers": "fourier()", "decoder_mixers": "causal()", "cross_mixers": "dense()"}
    found = draw_layers({**shape, "num_decoder_layers": 2}, 16)
    assert [(one.stack, one.text) for one in found.mixers] == [
        ("layers", "fourier()"),
        ("decoder layers", "causal()"),
        ("cross-attention of decoder layers", "dense()"),
    ]
    assert found.has_decoder and found.mixers[0].keys is None and found.mixers[0].flops > 0
    two = draw_layers({**shape, "num_decoder_layers": 2, "global_tokens": 4}, 16, 6).mixers
    assert [(one.queries, one.length) for one in two] == [(20, 20), (6, 6), (6, 20)]
    assert len(two[2].pictures[0]) == 6 and len(two[2].pictures[0][0]) == 20


def test_what_is_not_known_is_said():
    assert draw_layers({}, 16).remark == "The folder does not hold the sizes of the model."
    assert draw_layers({**SHAPE, "mixers": "window(left="}, 16).remark.startswith("Patterns are left out")
    other = draw_layers({**SHAPE, "model_type": "bert"}, 16)
    assert "bert" in other.remark and [one.text for one in other.mixers] == ["dense()"]
    led = draw_layers({**SHAPE, "model_type": "led", "is_encoder_decoder": True}, 16, 8)
    assert led.mixers == [] and "led" in led.remark
    t5 = draw_layers({**SHAPE, "model_type": "t5", "is_encoder_decoder": True}, 16, 8)
    assert [one.text for one in t5.mixers] == ["dense()", "causal()", "dense()"] and "assumed" in t5.remark
    followed = draw_layers({**SHAPE, "model_type": "llama", "asterism_pattern": "window(left=3)"}, 16)
    assert [one.text for one in followed.mixers] == ["window(left=3)"] and followed.remark is None
    many = [f"window(left={number})" for number in range(MOST_PICTURES + 3)]
    found = draw_layers({**SHAPE, "num_hidden_layers": len(many), "mixers": many}, 16)
    assert "3 more patterns" in found.remark and sum(bool(one.pictures) for one in found.mixers) == MOST_PICTURES


@pytest.mark.parametrize("size", [True, -1, 0, 2.5, "8", 2**40])
def test_sizes_that_no_model_has(size):
    assert draw_layers({**SHAPE, "num_hidden_layers": size, "mixers": "causal()"}, 16).mixers == []
