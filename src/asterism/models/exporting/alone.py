"""Loads a model with classes of transformers alone, and writes its logits: the other half of `check.py`.

    python -P alone.py FOLDER INPUTS.safetensors OUTPUT.safetensors

This file runs in a process of its own and imports nothing of Asterism, so that nothing of it can be at work. INPUTS
holds input_ids and attention_mask int64 [B, N], and `keep` int64 [K], the columns whose logits are wanted. Its metadata
name the class and the dtype. OUTPUT holds logits [B, K, V] by the name of the attention that computed them: of SDPA in
that dtype, of eager attention in float32. In float64, eager attention makes NaN of padding, since its softmax casts to
float32.
"""

import json
import sys
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file


def main(folder: str, inputs: str, output: str) -> None:
    with safe_open(inputs, framework="pt") as file:
        given = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        named = file.metadata()
    kind, dtype = getattr(transformers, named["class"]), getattr(torch, named["dtype"])
    first = "sdpa" if kind._supports_sdpa else "eager"
    model: Any
    model, info = kind.from_pretrained(
        folder, dtype=dtype, attn_implementation=first, local_files_only=True, output_loading_info=True
    )
    lacks = {name: sorted(map(str, info[name])) for name in ("missing_keys", "mismatched_keys", "unexpected_keys")}
    found = {"sdpa": logits_of(model.eval(), **given)} if first == "sdpa" else {}
    model.to(torch.float32)
    model.set_attn_implementation("eager")
    found["eager"] = logits_of(model, **given)
    imported = [name for name in sys.modules if name.partition(".")[0] == "asterism"]
    save_file(found, output, metadata={"keys": json.dumps(lacks), "imported": json.dumps(imported)})


@torch.inference_mode()
def logits_of(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Logits, or last hidden states of a model without a head, [B, K, V] in the dtype of the weights, row after row.

    input_ids, attention_mask  int64 [B, N]
    keep                       int64 [K], the columns that are wanted
    """
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the others know no float64
    rows = []
    for row in range(len(input_ids)):
        inputs = {"input_ids": input_ids[row : row + 1], "attention_mask": attention_mask[row : row + 1]}
        # Causal models compute only what is wanted; of the others, vocabularies are small.
        told = {"use_cache": False, "logits_to_keep": keep} if kept_by(model) else {}
        result = model(**inputs, **told)
        states = result.logits if hasattr(result, "logits") else result.last_hidden_state
        rows.append(states if kept_by(model) else states[:, keep])
    return torch.cat(rows).contiguous()


def kept_by(model: Any) -> bool:
    """Whether a model takes the columns whose logits are wanted."""
    return type(model).__name__.endswith("ForCausalLM")


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    main(*sys.argv[1:])
