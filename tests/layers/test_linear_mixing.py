"""Linear mixing is a matrix over tokens and one over features, over the real tokens of each row alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.errors import ConfigurationError
from asterism.layers import LinearMixing, rows_of
from asterism.models import AsterismConfig, AsterismForMaskedLM, AsterismModel
from asterism.shape import ModelConfig
from asterism.training import RunConfig, train


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(tokens: int, width: int, *, learned: bool = True) -> LinearMixing:
    made = LinearMixing(tokens, width, learned=learned).double()
    with torch.no_grad():
        made.over_tokens.copy_(random(tokens, tokens, seed=1))
        made.over_features.copy_(random(width, width, seed=2))
    return made


def mixed(tokens: np.ndarray, made: LinearMixing) -> np.ndarray:
    """y[k, f] = sum over n, m of T[k, n] x[n, m] F[m, f], term by term."""
    over_tokens, over_features = made.over_tokens.detach().numpy(), made.over_features.detach().numpy()
    count, width = tokens.shape
    out = np.zeros_like(tokens)
    for k in range(count):
        for n in range(count):
            for m in range(width):
                out[k] += over_tokens[k, n] * tokens[n, m] * over_features[m]
    return out


@pytest.mark.parametrize(("count", "width"), [(1, 1), (1, 6), (5, 3), (7, 8)])
@pytest.mark.parametrize("spare", [0, 3])
def test_linear_mixing_is_the_definition(count, width, spare):
    made, hidden = layer(count + spare, width), random(2, count, width)
    expected = np.stack([mixed(row, made) for row in hidden.numpy()])
    torch.testing.assert_close(made(hidden), torch.from_numpy(expected), atol=1e-12, rtol=0)


def test_padding_changes_no_real_token_and_gets_nothing():
    made, hidden = layer(8, 4), random(2, 6, 4)
    real = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    found = made(hidden, rows=rows_of(hidden, key_mask=real))
    torch.testing.assert_close(found[0, :4], made(hidden[:1, :4])[0])
    torch.testing.assert_close(found[1], made(hidden[1:])[0])
    assert (found[0, 4:] == 0).all()
    noisy = hidden.masked_fill(~real.unsqueeze(-1), math.nan)
    assert torch.equal(made(noisy, rows=rows_of(noisy, key_mask=real)), found)


def test_gradients_also_of_the_matrices():
    made, hidden = layer(6, 3), random(2, 5, 3).requires_grad_()
    rows = rows_of(hidden, key_mask=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    assert torch.autograd.gradcheck(lambda x: made(x, rows=rows), hidden)
    given = tuple(made.parameters())
    assert torch.autograd.gradcheck(
        lambda t, f: torch.func.functional_call(made, {"over_tokens": t, "over_features": f}, hidden), given
    )


def test_the_first_weights_keep_the_size_of_what_they_mix():
    torch.manual_seed(0)
    hidden = torch.randn(1, 256, 128)
    assert abs(LinearMixing(256, 128)(hidden).std().item() - 1) < 0.1


def test_what_linear_mixing_refuses():
    made, hidden = LinearMixing(4, 2), torch.zeros(1, 4, 2)
    with refusing(ConfigurationError, "linear-row", "linear() has weights for rows of 4 tokens, got 5"):
        made(torch.zeros(1, 5, 2))
    with refusing(ConfigurationError, "reads-future", "linear(learned=False) cannot be used by a causal model"):
        LinearMixing(4, 2, learned=False)(hidden, cache=object())
    segments = torch.tensor([[0, 0, 1, 1]])
    with refusing(ConfigurationError, "transform-segments", "linear() reads all tokens of a row"):
        made(hidden, rows=rows_of(hidden, segments=segments))
    with refusing(ConfigurationError, "linear-tokens", "at most 8,192, got max_position_embeddings=8,193"):
        LinearMixing(8193, 2)
    for tokens, width in ((0, 4), (8.5, 4), (4, -1)):
        with refusing(ConfigurationError, "linear-sizes", "must be a whole number of at least 1"):
            LinearMixing(tokens, width)


# --- in models --------------------------------------------------------------------------------------------------------


def config(mixers: str, **fields: object) -> AsterismConfig:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    usual = {"vocab_size": 32, "max_position_embeddings": 12, "position_type": "learned", "pad_token_id": 0}
    return AsterismConfig(**{**shape, **usual, "mixers": mixers, **fields})


@pytest.mark.parametrize("mixers", ["linear()", "linear(learned=False)", "interleave(linear(), dense())"])
def test_models_are_saved_and_loaded_with_their_matrices(mixers, tmp_path):
    torch.manual_seed(0)
    model = AsterismForMaskedLM(config(mixers)).eval()
    ids = torch.randint(1, 32, (2, 9))
    expected = model(input_ids=ids).logits
    model.save_pretrained(tmp_path)
    again = AsterismForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(input_ids=ids).logits, expected)
    learned = [name for name, _ in again.named_parameters() if "over_" in name]
    assert len(learned) == (0 if "False" in mixers else 4 if mixers == "linear()" else 2)


def test_global_tokens_have_room_in_front_of_the_longest_row():
    model = AsterismForMaskedLM(config("linear()", global_tokens=2, position_type="learned")).eval()
    assert model(input_ids=torch.randint(1, 32, (1, 12))).logits.shape == (1, 12, 32)


def test_padding_on_either_side_of_a_row_changes_no_logit():
    torch.manual_seed(0)
    model = AsterismForMaskedLM(config("interleave(linear(), dense())")).eval()
    ids = torch.randint(1, 32, (1, 7))
    alone = model(input_ids=ids).logits
    for left in (0, 3):
        padded = torch.nn.functional.pad(ids, (left, 3 - left))
        found = model(input_ids=padded, attention_mask=(padded != 0).long()).logits
        torch.testing.assert_close(found[:, left : left + 7], alone)


def test_a_run_learns_the_matrices_or_leaves_them(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    for number, mixers in enumerate(("linear()", "linear(learned=False)")):
        model = ModelConfig(mixers=mixers, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        run = RunConfig(
            model=replace(model, position_type="learned"),
            objective="mlm",
            data=str(text),
            context=64,
            batch_size=2,
            steps=3,
            learning_rate=1e-2,
            optimizer="muon",
            warmup_steps=1,
            tokenizer="bytes",
            dtype="float32",
        )
        states = []
        for steps in (1, 3):
            folder = tmp_path / f"{number}-{steps}"
            train(replace(run, steps=steps), folder)
            states.append(AsterismForMaskedLM.from_pretrained(folder / "model").state_dict())
        names = [name for name in states[0] if "over_" in name]
        assert len(names) == 4
        for name in names:
            assert torch.equal(states[0][name], states[1][name]) == (mixers != "linear()"), name


def test_causal_models_and_longer_rows_are_refused():
    with refusing(ConfigurationError, "reads-future", "linear() cannot be used by a causal model"):
        config("interleave(linear(), causal())").require_causal()
    with refusing(ConfigurationError, "block-field", "has only linear() mixers, which support no rotary positions"):
        AsterismModel(config("linear()", position_type="rotary"))
    with refusing(ConfigurationError, "linear-tokens", "max_position_embeddings=65,536"):
        AsterismModel(config("linear()", max_position_embeddings=65_536))
