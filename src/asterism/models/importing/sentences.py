"""Files next to the model that set its pooling and normalisation for SentenceTransformers.

Without them that library would take the mean of the tokens and not normalise, whatever the checkpoint did.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asterism.errors import CheckpointError, shown
from asterism.files import read_json
from asterism.models.importing.tokenizer import as_json, read_object

_MODULES = "modules.json"
_SIZES = {"word_embedding_dimension", "embedding_dimension"}
_KNOWN: dict[str, Collection[str]] = {"Transformer": (), "Pooling": _SIZES, "Normalize": ()}
"""The modules that have no weights but the model's; of the fields of their config.json one that is always there."""

_LONGEST = "max_seq_length"
_SETTINGS = {
    "config_sentence_transformers.json": {"__version__", "prompts", "similarity_fn_name"},
    **{
        f"sentence_{kind}_config.json": {_LONGEST, "do_lower_case", "transformer_task", "modality_config"}
        for kind in ("bert", "roberta", "camembert", "xlm-roberta")
    },
}
"""Other files of that library, each with fields of which it has some."""


@dataclass(frozen=True)
class Pipeline:
    """`files` by their names from the model's folder, and `notes` for the report."""

    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_pipeline(folder: Path, length: int | None) -> Pipeline:
    """The files of SentenceTransformers in a folder, none if there are none; `length` becomes the longest input.

    Raises CheckpointError for files that are not what their names say.
    """
    if not (folder / _MODULES).exists():
        return Pipeline()
    modules = _read_modules(folder / _MODULES)
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if unknown := [shown(module["type"]) for module, kind in zip(modules, kinds, strict=True) if not _is_known(module)]:
        return Pipeline(
            notes=[f"{_MODULES} of SentenceTransformers names {unknown[0]}, which is not imported: set pooling anew"]
        )
    files = {_MODULES: as_json(modules)}
    for module, kind in zip(modules, kinds, strict=True):
        path = folder / module["path"] / "config.json"
        if module["path"] and (path.exists() or _KNOWN[kind]):
            files[f"{module['path']}/{path.name}"] = as_json(_with_some(path, _KNOWN[kind]))
    for name, fields in _SETTINGS.items():
        if (folder / name).exists():
            settings = _with_some(folder / name, fields)
            if length is not None and _LONGEST in settings:
                settings[_LONGEST] = length
            files[name] = as_json(settings)
    return Pipeline(files, [f"SentenceTransformers reads it as before: {', '.join(kinds)} ({_MODULES})"])


def _read_modules(path: Path) -> list[dict[str, Any]]:
    """The entries of modules.json, each with a type and a folder inside this one; the model itself is beside it."""
    modules = read_json(path)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict)
        and module.keys() <= {"idx", "name", "path", "type", "kwargs"}
        and isinstance(module.get("type"), str)
        and isinstance(module.get("path"), str)
        and Path(module["path"]).name == module["path"]
        for module in modules
    ):
        raise CheckpointError(
            "damaged-modules", f"{path} is damaged: it must be a list of modules, each with its type and its folder"
        )
    return modules


def _is_known(module: dict[str, Any]) -> bool:
    """Whether a module is one of the library's own that needs no weights, where it must be."""
    library, _, kind = module["type"].rpartition(".")
    is_own = library.partition(".")[0] == "sentence_transformers" and kind in _KNOWN
    return is_own and (module["path"] == "") == (kind == "Transformer")


def _with_some(path: Path, fields: Collection[str]) -> dict[str, Any]:
    """A JSON object that has one of these fields, if there are any to have. Raises CheckpointError."""
    document = read_object(path)
    if fields and not document.keys() & set(fields):
        raise CheckpointError(
            "damaged-fields", f"{path} is damaged: it has none of the fields {', '.join(sorted(fields))}"
        )
    return document
