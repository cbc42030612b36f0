"""What a command names must be there: asked before torch and transformers are imported, which takes seconds."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from asterism.errors import CheckpointError, ConfigurationError, DataError


def require_run(folder: Path) -> None:
    """Raises CheckpointError for a folder that holds no run."""
    if not (folder / "run.json").exists():
        raise CheckpointError("not-a-run-folder", f"{folder} is not a run folder: it has no run.json")


def require_model(folder: Path, setting: str) -> None:
    """Raises CheckpointError, which begins with the name of the setting, for what is no folder of a model or a run."""
    if not any((folder / name).exists() for name in ("run.json", "config.json")):
        raise CheckpointError(
            "not-a-model-folder",
            f"{setting}: {folder} is not the folder of a model or a run: it has neither config.json nor run.json",
        )


def require_checkpoint(folder: Path) -> None:
    """Raises CheckpointError for what is no folder, and so no checkpoint of Hugging Face."""
    if not folder.is_dir():
        raise CheckpointError(
            "not-a-model-folder",
            f"{folder} is not a folder; give one with config.json and model.safetensors"
            " (`hf download NAME --local-dir FOLDER` fetches it)",
        )


def require_package(package: str, module: str, extra: str, purpose: str) -> None:
    """Raises ConfigurationError if an optional package is not there, naming the extra that brings it."""
    if find_spec(module) is None:
        raise ConfigurationError(
            "package-missing",
            f"{purpose} needs {package}, which is not installed: pip install '.[{extra}]' in a checkout",
        )


def require_matplotlib(extra: str, purpose: str) -> None:
    """Raises ConfigurationError if matplotlib is not there, or cannot be imported with the backend that is asked for.

    No backend is used: pictures are files. But matplotlib reads the name when it is imported.
    """
    require_package("matplotlib", "matplotlib", extra, purpose)
    if backend := os.environ.get("MPLBACKEND"):
        try:
            import_module("matplotlib")
        except ValueError:
            raise ConfigurationError(
                "matplotlib-backend", f"{purpose} needs matplotlib, which knows no MPLBACKEND={backend}; unset it"
            ) from None


def require_data(path: str | Path) -> None:
    """Raises DataError where nothing is at a path, or at either of a pair of them."""
    for one in pair_of(path) or (path,):
        if not os.path.exists(one):  # noqa: PTH110
            raise DataError("missing-data", f"data: there is no file or folder {one}")


def pair_of(path: str | Path) -> tuple[str, str] | None:
    """The names of two files that are given as SOURCE,TARGET; None for the name of one, which may have a comma."""
    first, _, second = str(path).partition(",")
    # Unlike Path.exists, which raises before Python 3.14, this is false of what can be no name of a file.
    return (first, second) if first and second and not os.path.exists(path) else None  # noqa: PTH110
