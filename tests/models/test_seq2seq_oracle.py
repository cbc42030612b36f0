"""Whole encoder-decoders with patterned cross attention against one written in plain PyTorch, a row at a time.

The oracle reads the weights by name and the patterns as pictures that plain loops draw. It knows no padding, batch,
plan or cache: each row is computed alone, from its real tokens.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from oracle import Rule, across, per_head, rule
from small_models import VOCABULARY, randomise, seq2seq_config
from strategies import build, hold, is_predictable, tiers

from asterism.models import AsterismForConditionalGeneration
from asterism.models.cache.source import EncoderDecoderPatternCache

pytestmark = pytest.mark.model

HEADS = 4

ENCODERS = (
    rule("dense"),
    rule("window", left=3, right=2),
    rule("window", left=2, right=2) | rule("global_tokens", positions=0),
    rule("bigbird", block=4, window_blocks=3, random=1),
    per_head(rule("stride", period=3), rule("dense"), rule("blocks", size=4), rule("window", left=5, right=0)),
)
DECODERS = (
    rule("causal"),
    rule("window", left=4),
    rule("fixed", stride=4, summary=1, heads=HEADS),
    per_head(rule("causal"), rule("window", left=1), rule("strided", stride=3), rule("sinks", first=1, window=3)),
)


def reads() -> st.SearchStrategy[Rule]:
    """What a token of the target reads, of those rules that do not depend on the length of the source."""
    window = st.builds(lambda left, right, gap: rule("window", left=left, right=right, dilation=gap),
                       st.integers(0, 6), st.integers(0, 6), st.sampled_from((1, 1, 2)))  # fmt: skip
    inner = st.one_of(
        window,
        window.map(lambda near: near | rule("global_keys", positions=0)),
        st.sampled_from(
            (
                rule("bigbird", block=4, window_blocks=3, random=0, globals=(0,)),
                rule("bigbird_causal", block=3, window_blocks=1, random=1, globals=(0,), seed=3),
                rule("blocks", size=4, right=1),
                rule("stride", period=3),
                rule("causal"),
            )
        ),
    )
    placed = st.builds(across, inner, st.sampled_from(("1/2", 1, "3/2", 2)))
    return st.one_of(
        placed,
        placed,
        placed.map(lambda one: one | rule("columns", period=5)),
        placed.map(lambda one: ~one),
        st.just(rule("dense")),
    )


def layer_of_cross() -> st.SearchStrategy[Rule]:
    return st.one_of(reads(), st.tuples(*[reads()] * HEADS).map(lambda parts: per_head(*parts)))


Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model and a batch. Of every row: how many tokens are real, and how many padded ones stand before them."""

    encoder: Rule
    decoder: Rule
    cross: tuple[Rule, Rule]
    fields: dict[str, Any]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    gaps: tuple[int, ...]
    seed: int

    def model(self) -> AsterismForConditionalGeneration:
        config = seq2seq_config(
            self.encoder.text, self.decoder.text, cross_mixers=[one.text for one in self.cross], **self.fields
        )
        model = randomise(AsterismForConditionalGeneration(config))
        assert isinstance(model, AsterismForConditionalGeneration)
        return model

    def batch(self, counts: tuple[int, ...], number: int, gaps: tuple[int, ...] | None = None) -> Batch:
        """Tokens and mask int64 [rows, columns]; padding is noise, which nobody may read."""
        columns = max(counts) + max(self.gaps)
        generator = torch.Generator().manual_seed(2 * self.seed + number)
        tokens = torch.randint(3, VOCABULARY, (len(counts), columns), generator=generator)
        mask = torch.zeros_like(tokens)
        for row, (count, gap) in enumerate(zip(counts, gaps or self.gaps, strict=True)):
            start = min(gap, columns - count)
            mask[row, start : start + count] = 1
        return tokens, mask


def cases(lengths: int = 19, targets: int = 13) -> st.SearchStrategy[Case]:
    fields = st.fixed_dictionaries(
        {
            "block": st.sampled_from(("pre_norm", "post_norm")),
            "position_type": st.sampled_from(("none", "learned", "rotary")),
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
        }
    )
    three = lambda most: st.tuples(*[st.integers(1, most)] * 3)  # noqa: E731
    return st.builds(
        Case,
        st.sampled_from(ENCODERS),
        st.sampled_from(DECODERS),
        st.tuples(layer_of_cross(), layer_of_cross()),
        fields,
        three(lengths),
        three(targets),
        st.tuples(*[st.integers(0, 4)] * 3),
        st.integers(0, 99),
    )


# --- the oracle ------------------------------------------------------------------------------------------------------


class Oracle:
    """Logits float64 [target tokens, vocabulary] of one source and one target, int64 [tokens], from weights by name."""

    def __init__(self, case: Case, model: AsterismForConditionalGeneration) -> None:
        self.case, self.config = case, model.config
        names = model.named_parameters(remove_duplicate=False)
        copies = {id(one): one.detach().clone().requires_grad_() for one in model.parameters()}
        self.weights = {name: copies[id(one)] for name, one in names}

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        encoded = self.stack("encoder", source, None)
        return F.linear(self.stack("decoder", target, encoded), self.weights["lm_head.weight"])

    def stack(self, name: str, tokens: torch.Tensor, encoded: torch.Tensor | None) -> torch.Tensor:
        hidden = F.embedding(tokens, self.weights["model.encoder.embed_tokens.weight"])
        if self.config.position_type == "learned":
            hidden = hidden + self.weights[f"model.{name}.positions.weight"][: len(tokens)]
        own = getattr(self.case, name)
        for number in range(2):
            at = f"model.{name}.layers.{number}"
            branches = [("mixer", lambda x, at=at: self.attention(f"{at}.mixer", x, x, own, True))]
            if encoded is not None:
                rule = self.case.cross[number]
                read = lambda x, at=at, rule=rule: self.attention(f"{at}.cross_attention", x, encoded, rule, False)  # noqa: E731
                branches.append(("cross", read))
            branches.append(("feed_forward", lambda x, at=at: self.feed_forward(f"{at}.feed_forward", x)))
            for branch, compute in branches:
                norm = lambda x, key=f"{at}.{branch}_norm": self.norm(key, x)  # noqa: E731
                before = self.config.block == "pre_norm"
                hidden = hidden + compute(norm(hidden)) if before else norm(hidden + compute(hidden))
        return self.norm(f"model.{name}.norm", hidden) if self.config.block == "pre_norm" else hidden

    def attention(self, name: str, x: torch.Tensor, read: torch.Tensor, rule: Rule, turns: bool) -> torch.Tensor:
        q, k, v = (self.linear(f"{name}.{part}", of) for part, of in (("query", x), ("key", read), ("value", read)))
        width = q.shape[1] // HEADS
        q, k, v = (one.view(len(one), -1, width).transpose(0, 1) for one in (q, k, v))
        if turns and self.config.position_type == "rotary":
            q, k = turned(q), turned(k)
        k, v = (one.repeat_interleave(HEADS // one.shape[0], dim=0) for one in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(width)
        allowed = torch.from_numpy(picture(rule, len(x), len(read)))
        powers = torch.where(allowed, scores, -math.inf)
        top = powers.detach().amax(-1, keepdim=True).clamp(min=-1e300)
        powers = torch.exp(powers - top)
        total = powers.sum(-1, keepdim=True)
        out = (powers / torch.where(total == 0, 1, total)) @ v
        return self.linear(f"{name}.output", out.transpose(0, 1).flatten(1))

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        up = self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", up * torch.sigmoid(1.702 * up))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + self.config.layer_norm_eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su 2021): feature j and feature j + half turn together, token by token."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 10000.0 ** (torch.arange(half, dtype=x.dtype) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def picture(rule: Rule, queries: int, keys: int) -> np.ndarray:
    """bool [heads or 1, queries, keys]; what is drawn at random only the library knows."""
    if rule.name == "per_head":
        return np.concatenate([picture(part, queries, keys)[:1] for part in rule.parts])
    return oracle.picture(rule, queries, keys) if is_predictable(rule) else build(rule).dense(queries, keys)


# --- the comparisons -------------------------------------------------------------------------------------------------


def close(found: torch.Tensor, expected: torch.Tensor, what: str, error: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, atol=error, rtol=error, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("count", tiers(5, 300))
def test_logits_and_gradients(count: int) -> None:
    def law(case: Case) -> None:
        model = case.model()
        expect = Oracle(case, model)
        source, source_mask = case.batch(case.sources, 0)
        target, target_mask = case.batch(case.targets, 1, case.gaps[::-1])
        logits = model(
            source, source_mask, decoder_input_ids=target, decoder_attention_mask=target_mask, use_cache=False
        ).logits
        probe = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(case.seed))
        found, wanted = [], []
        for row in range(len(source)):
            real = target_mask[row].bool()
            alone = expect(source[row, source_mask[row].bool()], target[row, real])
            close(logits[row, real], alone, f"logits of row {row}")
            found.append((logits[row, real] * probe[row, real]).sum())
            wanted.append((alone * probe[row, real]).sum())
        torch.stack(found).sum().backward()
        torch.stack(wanted).sum().backward()
        for name, parameter in model.named_parameters():
            copy = expect.weights[name]
            close(gradient(parameter), gradient(copy), f"gradient of {name}")

    hold(law, cases(), count)


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


@pytest.mark.parametrize("count", tiers(5, 60))
def test_greedy_generation(count: int) -> None:
    """Token by token with caches, from padded sources and prompts, as the oracle says of the whole text."""

    def law(case: Case) -> None:
        model = case.model()
        expect = Oracle(case, model)
        source, source_mask = case.batch(case.sources, 0)
        prompts, mask = case.batch(case.targets, 1, (99, 99, 99))
        more = 6
        written, found = prompts, []
        with torch.no_grad():
            cache = EncoderDecoderPatternCache(model.config)
            for step in range(more):
                new = written if step == 0 else written[:, -1:]
                logits = model(
                    source,
                    source_mask,
                    decoder_input_ids=new,
                    decoder_attention_mask=mask,
                    past_key_values=cache,
                    use_cache=True,
                ).logits[:, -1]
                found.append(logits)
                written = torch.cat([written, logits.argmax(-1, keepdim=True)], dim=1)
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            for row in range(len(source)):
                text = written[row, mask[row].bool()]
                alone = expect(source[row, source_mask[row].bool()], text[:-1])
                close(torch.stack(found, dim=1)[row], alone[-more:], f"row {row}")

    hold(law, cases(), count)


FLOAT32 = 1e-5  # transformers adds up scores of beams in it


@pytest.mark.parametrize("count", tiers(4, 60))
def test_beams(count: int) -> None:
    """Beams find the same with caches and without, and their scores are the log-probabilities of the oracle."""

    def law(case: Case) -> None:
        model = case.model()
        expect = Oracle(case, model)
        source, source_mask = case.batch(case.sources, 0)
        options: dict[str, Any] = {
            "num_beams": 3,
            "do_sample": False,
            "max_new_tokens": 7,
            "min_new_tokens": 7,
            "length_penalty": 0.0,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        cached, plain = (
            model.generate(source, attention_mask=source_mask, use_cache=use, **options) for use in (True, False)
        )
        assert torch.equal(cached.sequences, plain.sequences)
        close(cached.sequences_scores, plain.sequences_scores, "scores", FLOAT32)
        for row, text in enumerate(cached.sequences):
            with torch.no_grad():
                logits = expect(source[row, source_mask[row].bool()], text[:-1])
            likely = logits.log_softmax(-1).gather(1, text[1:, None]).sum()
            close(cached.sequences_scores[row].double(), likely, f"row {row}", FLOAT32)

    hold(law, cases(), count)
