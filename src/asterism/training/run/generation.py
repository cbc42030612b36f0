"""Bytes from a trained model: continue a prompt."""

from pathlib import Path

import torch

from asterism.errors import ConfigurationError
from asterism.randomness import isolated
from asterism.training.run.build import load_model
from asterism.training.run.folder import RunFolder


def generate_bytes(
    folder: str | Path,
    prompt: bytes,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> bytes:
    """`length` bytes that follow `prompt`, sampled from a run's model by an explicit seed.

    Temperature 0 takes the likeliest byte; `top_k` keeps the k likeliest, `top_p` the fewest that together have that
    probability. Where training put a NUL byte (between files, before a record) so does this: an empty prompt starts
    after one, and so does every record. Raises CheckpointError, and ConfigurationError for settings that cannot work
    and for a prompt and length beyond the positions of the model.
    """
    _check(length, temperature, top_k, top_p)
    config, model = load_model(RunFolder(folder))
    if config.objective != "causal":
        raise ConfigurationError(
            f"generation: {folder} was trained with objective {config.objective}, which fills in what is masked and"
            " continues nothing; use its model folder with the fill-mask pipeline of transformers"
        )
    start = b"\0" + prompt if config.record_length is not None or not prompt else prompt
    tokens = torch.tensor([list(start)], device=model.device)
    sampling = {"temperature": temperature, "top_k": top_k or 0, "top_p": 1.0 if top_p is None else top_p}
    with isolated(seed):
        output = model.generate(
            tokens,
            max_new_tokens=length,
            do_sample=temperature > 0,
            **(sampling if temperature > 0 else {}),
        )
    return bytes(output[0, len(start) :].tolist())


def _check(length: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    for name, value, holds, rule in (
        ("length", length, length >= 1, "must be at least 1"),
        ("temperature", temperature, temperature >= 0, "must not be negative"),
        ("top_k", top_k, top_k is None or top_k >= 1, "must be at least 1"),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1, "must be above 0 and at most 1"),
    ):
        if not holds:
            raise ConfigurationError(f"generation: {name}={value!r} {rule}")
