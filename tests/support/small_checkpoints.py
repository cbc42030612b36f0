"""What tests of imported checkpoints share: models of Hugging Face leave no trace, and folders are changed."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn


@contextmanager
def undone() -> Iterator[None]:
    """Leaves the global generators of torch and numpy as they were."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(state)


def draw_weights(model: nn.Module, *, spread_of: Callable[[str], float] = lambda name: 0.3) -> None:
    """Weights, biases and norms that all matter; `spread_of` gives the spread by the name of a parameter."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # sines
        is_scale = "norm" in name.lower() and name.endswith("weight")
        nn.init.normal_(parameter, mean=float(is_scale), std=0.1 if is_scale else spread_of(name), generator=generator)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(generator=generator)


def recorder(draw: Callable[..., list[np.ndarray]], drawn: list) -> Callable[..., list[np.ndarray]]:
    def recorded(**arguments: Any) -> list[np.ndarray]:
        drawn.append(draw(**arguments))
        return drawn[-1]

    return recorded


def pattern_of(blocks: Sequence[np.ndarray], n_blocks: int, block: int) -> str:
    """The text of BigBird over `n_blocks` whole blocks, with these random blocks for each head."""
    fixed = f"blocks({block}, 1, 1) | global_tokens((0,), {block})"
    last = f"global_tokens(({n_blocks - 1},), {block})"
    heads = []
    for rows in blocks:
        pairs = [
            f"global_queries(({query},), {block}) & global_keys({tuple(map(int, keys))}, {block})"
            for query, keys in enumerate(rows, start=1)
        ]
        heads.append(" | ".join([fixed, last, *(f"({pair})" for pair in pairs)]))
    return f"per_head([{', '.join(heads)}])"


def edit(folder: Path, **fields: object) -> None:
    """Change config.json; None takes a field out."""
    document = json.loads((folder / "config.json").read_text()) | fields
    document = {name: value for name, value in document.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(document))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
