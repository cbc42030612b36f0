"""Small random encoders of Hugging Face, as checkpoints to import."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from small_checkpoints import draw_weights, undone
from torch import nn

VOCABULARY, PADDING, POSITIONS = 40, 1, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "pad_token_id": PADDING,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ATTENTION = {"num_attention_heads": 4, "attention_probs_dropout_prob": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "Bert": ATTENTION | {"max_position_embeddings": POSITIONS},
    "Roberta": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1, "layer_norm_eps": 1e-5},
    "XLMRoberta": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1},
    "Camembert": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1},
    "Longformer": ATTENTION | {"max_position_embeddings": POSITIONS + PADDING + 1, "attention_window": [4, 8]},
    "BigBird": ATTENTION | {"max_position_embeddings": POSITIONS, "attention_type": "original_full", "sep_token_id": 2},
    "FNet": {"max_position_embeddings": POSITIONS},
}
SPARSE = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 2}


def original(kind: str, head: str = "Model", **fields: Any) -> nn.Module:
    """A model of Hugging Face in float64, with weights, biases and norms that all matter."""
    with undone():
        config = getattr(transformers, f"{kind}Config")(**(SIZES | KINDS[kind] | fields))
        model = getattr(transformers, kind + head)(config).double().eval()
    draw_weights(model, spread_of=lambda name: 1.0 if "embeddings.weight" in name else 0.3)
    return model


def batch(rows: int, length: int, padded: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """Random tokens and types; the last `padded[i]` tokens of row i are padding."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    types = torch.randint(0, 2, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.long)
    for row, padding in enumerate(padded):
        mask[row, length - padding :] = 0
    tokens, types = tokens.masked_fill(mask == 0, PADDING), types * mask
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}


def difference(ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor) -> float:
    """The largest over the real tokens; both sides must be finite and not all alike."""
    assert ours.dtype == theirs.dtype == torch.float64
    assert ours.shape == theirs.shape
    assert theirs[mask.bool()].std() > 0.1
    return (ours - theirs).detach()[mask.bool()].abs().max().item()
