"""What a command names must be there: asked before torch and transformers are imported, which takes seconds."""

from pathlib import Path

from asterism.errors import CheckpointError, DataError


def require_run(folder: Path) -> None:
    """Raises CheckpointError for a folder that holds no run."""
    if not (folder / "run.json").exists():
        raise CheckpointError(f"{folder} is not a run folder: it has no run.json")


def require_model(folder: Path, setting: str) -> None:
    """Raises CheckpointError, which begins with the name of the setting, for what is no folder of a model or a run."""
    if not any((folder / name).exists() for name in ("run.json", "config.json")):
        raise CheckpointError(
            f"{setting}: {folder} is no folder of a model or a run: it has no config.json or run.json"
        )


def require_checkpoint(folder: Path) -> None:
    """Raises CheckpointError for what is no folder, and so no checkpoint of Hugging Face."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; give one with config.json and model.safetensors"
            " (`hf download NAME --local-dir FOLDER` fetches it)"
        )


def require_data(path: Path) -> None:
    """Raises DataError for a path where nothing is."""
    if not path.exists():
        raise DataError(f"data: there is no file or folder {path}")
