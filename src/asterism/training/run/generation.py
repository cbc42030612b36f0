"""How a model draws what follows a prompt: the settings of sampling, checked."""

from typing import Any

from asterism.errors import ConfigurationError


def sampling(length: int, *, temperature: float, top_k: int | None, top_p: float | None) -> dict[str, Any]:
    """Arguments for `generate` of transformers. Raises ConfigurationError for settings that cannot work."""
    for name, value, holds, rule in (
        ("length", length, length >= 1, "must be at least 1"),
        ("temperature", temperature, temperature >= 0, "must not be negative"),
        ("top_k", top_k, top_k is None or top_k >= 1, "must be at least 1"),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1, "must be above 0 and at most 1"),
    ):
        if not holds:
            raise ConfigurationError(f"generation: {name}={value!r} {rule}")
    if temperature == 0:
        return {"max_new_tokens": length, "do_sample": False}
    drawn = {"temperature": temperature, "top_k": top_k or 0, "top_p": 1.0 if top_p is None else top_p}
    return {"max_new_tokens": length, "do_sample": True, **drawn}
