"""The run folder: it holds everything about a run, and only this file knows its names.

    run.json          configuration, corpus (name, hash, sizes), versions, those of what reads the data among them, and
                      the machine; once there is one, the result, SHA-256 of the files in model/, and peak memory
    history.jsonl     one JSON object per line: training figures, and validation bits per byte
    samples.jsonl     what the model wrote at each evaluation, if it writes: one JSON object per text
    loss.png          the same as a picture
    tensorboard/      the same for TensorBoard
    checkpoints/      step-00000250/: a Hugging Face model folder with optimizer.safetensors and state.json added;
                      only the newest is kept, and none once the run is finished
    predictions.jsonl what a fine-tuned model says about each validation example
    report.md         for people, where the predictions are texts: scores, and some examples to read
    model/            the finished model: a Hugging Face model folder, with nothing of ours in it
    .lock             there while a process writes

Invariant: run.json is written first, and model/ before its result, so everything under these names is whole. Files are
read only if they match the sums in run.json or state.json, and these two only if they match their own.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from asterism.errors import AsterismError, CheckpointError, DataError
from asterism.files import (
    check_model_folder,
    flush,
    is_leftover,
    make_folder,
    remove_folder,
    remove_leftovers,
    write_json,
    write_text,
    writing,
)
from asterism.presence import require_model, require_run
from asterism.system import sha256_of
from asterism.training.run.integrity import check_sums, read_sealed, seal, sums_of
from asterism.training.run.lock import LOCK, locked
from asterism.training.settings.configuration import AnyConfig, Dtype, config_from_dict

STATE = "state.json"
"""The record of a checkpoint, in its folder."""
PLACES = ("data", "validation", "genome", "label_table", "column_groups")
"""Settings that locate the data. The data may move, because their hash identifies them."""
RENEWED = (*PLACES, "report_bytes", "report_examples")
"""Settings that may change when an unfinished run is resumed; run.json is then updated."""
RECORDED = ("kind", "config", "dtype", "decided", "corpus", "readers", "notes", "prices", "versions", "result")
"""The required fields of run.json; `kind` is one of `configuration.KINDS`."""


class RunFolder:
    """Paths and records of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.run_file = self.path / "run.json"
        self.history_file = self.path / "history.jsonl"
        self.samples = self.path / "samples.jsonl"
        self.picture = self.path / "loss.png"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.predictions = self.path / "predictions.jsonl"
        self.page = self.path / "report.md"
        self.model = self.path / "model"
        self._checked: set[Path] = set()

    def create(self, record: Mapping[str, Any]) -> None:
        """Start a run here. Raises CheckpointError if the folder is not empty."""
        self.refuse_existing()
        with writing(self.path):
            make_folder(self.path)
            remove_leftovers(self.path)
        write_json(self.run_file, seal(record))

    def finish(self, result: Mapping[str, Any], peak_memory: int) -> None:
        """Record the result, the sums of the files of the finished model, and the peak memory of the run in bytes."""
        facts = {"result": result, "model_files": sums_of(self.model), "peak_memory": peak_memory}
        write_json(self.run_file, seal(self.read_record() | facts))

    def is_renewed(self, config: AnyConfig) -> bool:
        """Whether the data moved since run.json was written, or the report is to cover more or less of them."""
        recorded = self.read_config()
        return any(getattr(recorded, name, None) != getattr(config, name, None) for name in RENEWED)

    def refuse_other_data(self, corpus: Mapping[str, Any]) -> None:
        """Raise DataError if a corpus, by its record, differs from the one with which the run began."""
        if self.read_record()["corpus"]["sha256"] != corpus["sha256"]:
            raise DataError(
                "data-changed",
                f"data: {corpus['name']} differs from the data that the run in {self.path} began with (another hash)",
            )

    def renew(self, config: AnyConfig, decided: Mapping[str, Any]) -> None:
        """Record where the data are now, everything that depends on it, and how much of them the report covers."""
        record = self.read_record()
        renewed = {name: getattr(config, name) for name in RENEWED if hasattr(config, name)}
        changes = {"config": {**record["config"], **renewed}, "decided": decided}
        write_json(self.run_file, seal({**record, **changes}))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the body, no other process writes here. Raises CheckpointError, which names the process that does."""
        with locked(self.path):
            yield

    def refuse_existing(self) -> None:
        """Raise CheckpointError if the folder holds other files, or cannot be a folder."""
        if "\0" in str(self.path):
            raise CheckpointError("file-name", f"{str(self.path)!r} cannot be the name of a folder; choose another")
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir() or not all(_is_ours(path) for path in self.path.iterdir()):
            raise CheckpointError(
                "folder-not-empty",
                f"{self.path} exists and is not an empty folder; resume it, or choose another folder",
            )

    def read_record(self) -> dict[str, Any]:
        """The contents of run.json. Raises CheckpointError if this is not a run folder, or a damaged one."""
        require_run(self.path)
        record = read_sealed(self.run_file)
        if lacking := [name for name in RECORDED if name not in record]:
            raise CheckpointError("damaged-fields", f"{self.run_file} is damaged: it lacks {', '.join(lacking)}")
        corpus = record["corpus"]
        if not (isinstance(corpus, dict) and isinstance(corpus.get("sha256"), str)):
            raise CheckpointError("damaged-fields", f"{self.run_file} is damaged: it does not describe the corpus")
        return record

    def read_config(self) -> AnyConfig:
        """The configuration of the run, as it was requested. Raises CheckpointError."""
        record = self.read_record()
        try:
            return config_from_dict(record["kind"], record["config"])
        except (AsterismError, AttributeError, TypeError) as error:
            raise CheckpointError("damaged-file", f"{self.run_file} is damaged: {error}") from error

    def read_settled(self) -> AnyConfig:
        """The configuration with the dtype that the run computes in, also if it was left open. Raises
        CheckpointError.
        """
        config, dtype = self.read_config(), self.read_record()["dtype"]
        if dtype not in get_args(Dtype) or dtype == "auto":
            raise CheckpointError(
                "damaged-fields", f"{self.run_file} is damaged: it lacks the dtype that the run computes in"
            )
        return replace(config, dtype=dtype)

    def read_prices(self) -> dict[str, Any]:
        """The prices of attention when the run began, which decide its kernels; {} on a GPU. Raises CheckpointError."""
        from asterism.kernels.choice.figures import Figures  # imports torch, which readers do not need

        try:
            return dict(Figures(nanoseconds=self.read_record()["prices"]).nanoseconds)
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError("damaged-file", f"{self.run_file} is damaged: prices: {error}") from error

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.checkpoints / f"step-{step:08d}"

    def newest(self) -> tuple[bool, list[str]]:
        """The state that a training process changes: whether there is a result, and the names of the checkpoints."""
        finished = self.read_record()["result"] is not None
        with suppress(FileNotFoundError):
            return finished, sorted(path.name for path in self.checkpoints.iterdir())
        return finished, []

    def latest_checkpoint(self) -> Path | None:
        """The newest checkpoint, or None. Raises CheckpointError if one of its files was changed."""
        found = max(self.checkpoints.glob("step-*") if self.checkpoints.is_dir() else (), default=None)
        if found is not None:
            self._check(found, read_sealed(found / STATE).get("files"), found / STATE)
        return found

    def keep_only(self, checkpoint: Path | None) -> None:
        """Remove every other checkpoint, and files that killed writers left."""
        with writing(self.checkpoints):
            remove_leftovers(self.path)
            remove_leftovers(self.checkpoints)
            for path in list(self.checkpoints.glob("step-*")):
                if path != checkpoint:
                    remove_folder(path)
            if checkpoint is None and self.checkpoints.is_dir():
                remove_folder(self.checkpoints)

    def tidy(self) -> None:
        """Remove files that a finished run no longer needs, if the process that finished it was killed before."""
        if self.checkpoints.exists() or any(_is_ours(path) for path in self.path.iterdir()):
            with suppress(CheckpointError), self.held():  # another process does it, or nothing can be changed here
                self.keep_only(None)

    def weights(self) -> Path:
        """The folder with the finished model, or the newest checkpoint.

        Raises CheckpointError if there is neither, or if one of its files was changed.
        """
        record = self.read_record()
        if record["result"] is not None:
            self._check(self.model, record.get("model_files"), self.run_file)
            return self.model
        found = self.latest_checkpoint()
        if found is None:
            raise CheckpointError(
                "no-checkpoint", f"{self.path} holds no model yet: the run ended before its first checkpoint"
            )
        return found

    def weights_digest(self) -> str:
        """The SHA-256 of the files of the model that answers."""
        digest = hashlib.sha256()
        for path in sorted(path for path in self.weights().iterdir() if path.is_file()):
            digest.update(sha256_of(path))
        return digest.hexdigest()

    def _check(self, folder: Path, sums: Any, record: Path) -> None:
        """Read a folder completely once, to check that it is unchanged."""
        if folder not in self._checked:
            check_sums(folder, sums, record)
            self._checked.add(folder)

    def append_history(self, entry: Mapping[str, Any]) -> None:
        """Add one line to the history."""
        with writing(self.history_file), self.history_file.open("a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")

    def append_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Add the texts that the model wrote after this step, one per line; they replace those of an earlier attempt at
        the step.
        """
        if samples:
            before = [line for line in self._lines(self.samples)[0] if line["step"] < step]
            self._write_lines(self.samples, [*before, *({"step": step, **sample} for sample in samples)])

    def end_history(self, entry: Mapping[str, Any]) -> None:
        """Add the last line, replacing the one of an interrupted finish."""
        before = [line for line in self.read_history() if (line["step"], line.keys()) != (entry["step"], entry.keys())]
        self._write_lines(self.history_file, [*before, entry])

    def flush_history(self) -> None:
        """Flush all lines to disk, before the checkpoint that relies on them."""
        if self.history_file.exists():
            with writing(self.history_file):
                flush(self.history_file)

    def read_history(self) -> list[dict[str, Any]]:
        """All whole lines of the history; a last line that was cut off is left out. Raises CheckpointError."""
        entries, damage = self._lines(self.history_file)
        if damage:
            raise CheckpointError("damaged-file", damage[0])
        return entries

    def cut_history(self, step: int) -> list[str]:
        """Remove records after `step`, from which the run is resumed, and damaged lines.

        Returns the problems of the damaged lines, which the run does not need.
        """
        damage = []
        for path in (self.history_file, self.samples):
            if path == self.history_file or path.exists():
                entries, wrong = self._lines(path)
                self._write_lines(path, [entry for entry in entries if entry["step"] <= step])
                damage += wrong
        return damage

    def _lines(self, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
        """The lines that can be read, and what is wrong with the others; the last one may have been cut off."""
        if not path.exists():
            return [], []
        lines = path.read_bytes().splitlines(keepends=True)
        entries, damage = [], []
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                if number < len(lines):
                    damage.append(f"{path} is damaged in line {number}: {error}")
                continue
            if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                entries.append(entry)
            else:
                damage.append(f"{path} is damaged in line {number}: it holds nothing of a step")
        return entries, damage

    def _write_lines(self, path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
        write_text(path, "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries))


def _is_ours(path: Path) -> bool:
    """Whether a file can be ignored: a lock, or a leftover of a killed writer."""
    return path.name == LOCK or is_leftover(path)


def model_folder(path: str | Path, setting: str) -> Path:
    """The folder of a model: `path` itself, or where the model of a run is.

    Raises CheckpointError, which begins with the name of the setting that gave the path.
    """
    folder = Path(path)
    if (folder / "run.json").exists():
        weights = RunFolder(folder).weights()
        if (weights / "adapter_config.json").exists():
            raise _is_adapter(folder, setting)
        return weights
    if (folder / "adapter_config.json").exists():
        raise _is_adapter(folder, setting)
    require_model(folder, setting)
    try:
        check_model_folder(folder)
    except CheckpointError as error:
        raise CheckpointError("bad-setting", f"{setting}: {error}") from error
    return folder


def _is_adapter(folder: Path, setting: str) -> CheckpointError:
    return CheckpointError(
        "adapter-without-base",
        f"{setting}: {folder} holds an adapter without its base model; merge both with `asterism export RUN --merge"
        " --output FOLDER`, and give that folder",
    )
