"""Generation from a sharded prompt: ranks read it in parallel, and its keys stay on their ranks.

All ranks compute each new token, and only attention asks the others (cache/sharded.py). What is drawn is drawn by the
first rank, from a seed.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from asterism.errors import ConfigurationError
from asterism.layers.rows import Rows, find_rows
from asterism.layers.rows.sharded import ShardedRows
from asterism.models.asterism.backbone import too_long
from asterism.models.cache.naming import CACHE_NAMES, one_cache
from asterism.models.cache.sharded import ShardedCache
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.agreement import agree
from asterism.parallel.collectives import broadcast, summed
from asterism.parallel.context import resumed

if TYPE_CHECKING:
    from asterism.models.heads.causal_lm import AsterismForCausalLM

_KNOWN = frozenset(
    ("max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "eos_token_id", "pad_token_id", "bos_token_id")
)
_HARMLESS = frozenset(("transformers_version", "use_cache", "_from_model_config", "output_hidden_states"))


class Settings(NamedTuple):
    """How tokens are chosen: the likeliest, or one that is drawn from what the warpers leave.

    words  what was asked, by name, which must be the same on all ranks
    """

    new_tokens: int
    ends: tuple[int, ...]
    padding: int
    warpers: LogitsProcessorList | None
    seed: int
    words: dict[str, str]


@torch.no_grad()
def generate_shards(
    model: "AsterismForCausalLM",
    input_ids: Tensor | None,
    config: GenerationConfig | None,
    given: dict[str, Any],
) -> Tensor:
    """New tokens int64 [B, M], the same on all ranks; see AsterismForCausalLM.generate."""
    input_ids = given.pop("input_ids", None) if input_ids is None else input_ids
    mask = given.pop("attention_mask", None)
    cache: Any = one_cache(*(given.pop(name, None) for name in CACHE_NAMES))
    settings = _settings(model.generation_config if config is None else config, given)
    if input_ids is None:
        raise ConfigurationError(
            "ids-missing", "generate within sequence_parallel needs input_ids, this rank's shard of the prompt"
        )
    if model.model.global_tokens is not None:
        raise ConfigurationError(
            "global-tokens-in-shards",
            "generate within sequence_parallel does not support global tokens, but this model has"
            f" {model.config.global_tokens}: generate on one device",
        )
    context = cast(SequenceParallel, sharding())
    agree(context, {"call": "generate"} | settings.words, (0, 0), input_ids.device, wants_numbers=False)
    if cache is None:
        cache = ShardedCache(model.config.layer_patterns(), context)
    rows = cast(ShardedRows, find_rows(input_ids, mask, cache=cache))
    lengths = (rows.shards.length,) * len(input_ids) if rows.lengths is None else rows.lengths
    limit, longest = model.config.max_position_embeddings, max(lengths) + settings.new_tokens - 1
    if not min(lengths):
        raise ConfigurationError("prompt-row-empty", "a row of the prompt is empty: give each row at least one token")
    if model.config.positions_end and longest > limit:
        raise ConfigurationError("too-long", too_long(longest, model.config))
    random = torch.Generator().manual_seed(settings.seed)
    last = torch.tensor(lengths, device=input_ids.device)[:, None] - 1
    hidden = _run(model, rows, input_ids, cache)
    # The last token of a row lies on one rank.
    own = hidden.masked_fill((rows.positions != last)[..., None], 0).sum(dim=1, keepdim=True)
    scores = model._logits(summed(own, context.group))
    found = [_choose(context, settings, scores[:, 0], random)]
    for _ in range(settings.new_tokens - 1):
        ended = _ended(torch.cat(found, dim=1), settings)
        if bool(ended.all()):
            break
        with resumed(None):  # from here on, all ranks have the same tokens
            following = find_rows(found[-1], cache=cache)
        hidden = _run(model, following, found[-1], cache)
        token = _choose(context, settings, model._logits(hidden)[:, 0], random)
        found.append(token.masked_fill(ended[:, None], settings.padding))
    return torch.cat(found, dim=1)


def _run(model: "AsterismForCausalLM", rows: Rows, tokens: Tensor, cache: ShardedCache) -> Tensor:
    return model.model._run(rows, model.model._embed(tokens), cache, model.model._dropouts(None), False)[0]


def _ended(tokens: Tensor, settings: Settings) -> Tensor:
    """bool [B]: which rows have come to their end."""
    return torch.isin(tokens, tokens.new_tensor(settings.ends)).any(dim=1)


def _choose(context: SequenceParallel, settings: Settings, scores: Tensor, random: torch.Generator) -> Tensor:
    """int64 [B, 1]: what the first rank chooses by the scores [B, V], in float32 as transformers does."""
    scores = scores.float()
    if settings.warpers is None:
        token = scores.argmax(dim=-1, keepdim=True)
    else:
        before: Any = torch.zeros_like(scores, dtype=torch.int64)  # of which these warpers read nothing
        weights = settings.warpers(before, scores).softmax(dim=-1)
        token = torch.multinomial(weights.cpu(), 1, generator=random).to(scores.device)
    broadcast(token, context.group)
    return token


def _settings(config: GenerationConfig, given: dict[str, Any]) -> Settings:
    """Raises ConfigurationError for what cannot be asked of several ranks."""
    seed = given.pop("seed", None)
    config = deepcopy(config)
    unknown = config.update(**given)
    others = {**unknown, **{name: x for name, x in config.to_diff_dict().items() if name not in _KNOWN | _HARMLESS}}
    if others := {name: x for name, x in others.items() if x is not None and x is not False}:
        raise ConfigurationError(
            "generation-argument",
            f"generate within sequence_parallel does not take {', '.join(sorted(others))}, only"
            f" {', '.join(sorted(_KNOWN))} and seed: leave it out, or generate on one device",
        )
    if not config.max_new_tokens or config.max_new_tokens < 1:
        raise ConfigurationError(
            "new-tokens-missing", "max_new_tokens is missing: give the number of tokens to generate, at least 1"
        )
    if config.do_sample and seed is None:
        raise ConfigurationError(
            "seed-missing", "sampling within sequence_parallel needs a seed, as in generate(do_sample=True, seed=0)"
        )
    ends = config.eos_token_id
    ends = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
    padding = config.pad_token_id if config.pad_token_id is not None else (ends[0] if ends else 0)
    words = {name: str(getattr(config, name)) for name in sorted(_KNOWN)} | {"seed": str(seed)}
    warpers = _warpers(config) if config.do_sample else None
    return Settings(config.max_new_tokens, ends, padding, warpers, seed or 0, words)


def _warpers(config: GenerationConfig) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if config.temperature not in (None, 1.0):
        warpers.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k:
        warpers.append(TopKLogitsWarper(config.top_k))
    if config.top_p not in (None, 1.0):
        warpers.append(TopPLogitsWarper(config.top_p))
    return warpers
