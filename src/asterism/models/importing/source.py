"""The folder of a Hugging Face checkpoint: its configuration as JSON, its weights as tensors by name.

Weights are read from safetensors, in one file or in shards with an index. A pickle is read only when that is allowed,
and then by PyTorch's restricted reader, which builds tensors and runs no code of the file's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from asterism.errors import CheckpointError
from asterism.files import DAMAGED, read_json, read_tensors
from asterism.presence import require_checkpoint

Tensors = dict[str, torch.Tensor]

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"


def read_configuration(folder: Path) -> dict[str, Any]:
    """The contents of config.json. Raises CheckpointError."""
    require_checkpoint(folder)
    document = read_json(folder / "config.json")
    if not isinstance(document, dict):
        raise CheckpointError("not-a-json-object", f"{folder / 'config.json'} is damaged: it must hold one JSON object")
    named = document.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(one, str) for one in named)):
        raise CheckpointError(
            "damaged-architectures",
            f"{folder / 'config.json'} is damaged: architectures must be a list of names of classes",
        )
    return document


def read_generation(folder: Path, config: PreTrainedConfig) -> GenerationConfig:
    """How the checkpoint generates: its generation_config.json or, without one, what its configuration says.

    Raises CheckpointError.
    """
    path = folder / "generation_config.json"
    has_own = path.exists()
    try:
        if has_own:
            found = GenerationConfig.from_dict(read_json(path))
        else:
            # The class of the configuration keeps only defaults of its own; the file may say how many beams to use.
            said = config.to_dict() | read_configuration(folder)
            found = GenerationConfig.from_dict(GenerationConfig.from_model_config(said).to_dict())
        found.validate(strict=True)  # what transformers reads with a warning, it does not write
    except DAMAGED as error:
        where = path if has_own else folder / "config.json"
        raise CheckpointError("damaged-file", f"{where} is damaged: {' '.join(str(error).split())}") from error
    return found


def read_weights(folder: Path, *, allow_pickle: bool) -> Tensors:
    """All tensors of the checkpoint, on the CPU. Raises CheckpointError; a pickle needs `allow_pickle`."""
    if files := _files(folder, _SAFETENSORS):
        return _merge(folder, files, read_tensors)
    files = _files(folder, _PICKLE)
    if files is None:
        raise CheckpointError(
            "no-weights", f"{folder} has no weights: neither {_SAFETENSORS} nor {_SAFETENSORS}.index.json is there"
        )
    if not allow_pickle:
        raise CheckpointError(
            "pickle-only",
            f"{folder} has its weights only in a pickle ({_PICKLE}), which can run code when it is read: save them as"
            " safetensors, or pass --allow-pickle (allow_pickle=True), which reads tensors and nothing else",
        )
    return _merge(folder, files, _read_pickle)


def _files(folder: Path, name: str) -> dict[str, list[str] | None] | None:
    """The files that hold the weights, each with the tensors it must have if an index says so; None without files."""
    if (folder / name).exists():
        return {name: None}
    index = folder / f"{name}.index.json"
    if not index.exists():
        return None
    document = read_json(index)
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError("damaged-index", f"{index} is damaged: it must have a weight_map from tensors to files")
    if outside := sorted(file for file in set(places.values()) if Path(file).name != file):
        raise CheckpointError(
            "index-leaves-folder", f"{index} is damaged: {outside[0]!r} is not the name of a file in the folder"
        )
    return {file: [tensor for tensor, own in places.items() if own == file] for file in sorted(set(places.values()))}


def _merge(folder: Path, files: dict[str, list[str] | None], read: Callable[[Path], Tensors]) -> Tensors:
    tensors: Tensors = {}
    for file, expected in files.items():
        found = read(folder / file)
        for name in expected or ():
            if name not in found:
                raise CheckpointError(
                    "tensor-missing", f"{folder / file} is damaged: it lacks the tensor {name} that the index promises"
                )
        tensors |= found
    return tensors


def _read_pickle(path: Path) -> Tensors:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError("missing-file", f"{path} is missing") from None
    except Exception as error:  # a damaged or malicious pickle can raise anything
        raise CheckpointError(
            "not-tensors-only", f"{path} cannot be read as tensors only; save the weights as safetensors"
        ) from error
    is_named = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not is_named or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise CheckpointError(
            "not-tensors-only", f"{path} is not a checkpoint of weights: it must hold tensors by name and nothing else"
        )
    return dict(tensors)
