"""One run as a document: what `asterism report --json` prints of it, and the page draws."""

import os
import re
import shlex
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from asterism.errors import AsterismError, CheckpointError
from asterism.files import read_json
from asterism.report.cost import Weights, flops_per_step, read_weights
from asterism.report.curves import RunCurve, label_of, read_curves
from asterism.report.layers import Layers, draw_layers
from asterism.report.predictions import Predictions, read_predictions
from asterism.report.reading import JsonObjects, number, numbers, plain, why_not_read
from asterism.report.samples import read_samples
from asterism.training.objectives.span_sizes import SpanSizes
from asterism.training.run.folder import STATE, RunFolder
from asterism.training.run.lock import LOCK
from asterism.training.settings.configuration import AnyConfig, FineTuneConfig, RunConfig, config_to_dict

MOST_PREDICTIONS = 60
"""How many predictions of a run a page shows."""


class Judged(NamedTuple):
    """What an objective is judged by: a figure of its histories, and the fields of its results."""

    metric: str
    result: str
    counted: str
    unit: str
    baseline: str | None = None


JUDGED = {
    "causal": Judged("bits_per_byte", "validation_bits_per_byte", "validation_bytes", "bytes"),
    "prefix_lm": Judged("bits_per_byte", "validation_bits_per_byte", "validation_bytes", "bytes"),
    "mlm": Judged("masked_loss", "validation_masked_loss", "tokens_masked", "masked tokens", "unigram_entropy"),
    "span_corruption": Judged("target_loss", "validation_target_loss", "target_tokens", "target tokens"),
    "gap_sentences": Judged("target_loss", "validation_target_loss", "target_tokens", "target tokens"),
}
"""By the objective, where the task does not say it: the objectives' classes do, but importing them brings torch."""


@dataclass
class Description:
    """A run that is described.

    left_out  for each part of the page that is not there, or not whole, the sentence in its place
    """

    name: str
    folder: Path
    document: dict[str, Any]
    curves: dict[str, RunCurve]
    metric: str | None
    flops: float | None
    left_out: dict[str, str] = field(default_factory=dict)


def describe(path: str | Path, most_predictions: int = MOST_PREDICTIONS) -> Description:
    """All that a run folder says about its run. Raises CheckpointError for a folder that holds no run."""
    run = RunFolder(_usable(path))
    record, config = run.read_record(), run.read_config()
    left_out: dict[str, str] = {}
    settings = config_to_dict(config)
    result = record["result"] if isinstance(record["result"], dict) else None
    curves, counts = _history(run, config, left_out)
    where = run.model if result is not None else _newest(run)
    weights, shape = read_weights(where), _shape(where, settings)
    layers = draw_layers(shape, _length(config, record), target_length(config, record))
    flops = None if weights is None else flops_per_step(settings, weights, layers)
    score = _score(config, result, curves)
    learns = config.task if isinstance(config, FineTuneConfig) else config.objective
    name = plain(run.path.resolve().name or str(run.path), 80)
    document = {
        "name": name,
        "folder": plain(str(run.path), 500),
        "kind": config.kind,
        "learns": learns,
        "recipe": plain(config.name, 80),
        "status": _status(run, config, result, curves),
        "score": score,
        "cost": _cost(config, record, result, curves, weights, flops),
        "patterns": [one.as_json() for one in layers.mixers],
        "environment": _environment(record, config),
        "data": _data(record, config),
        "files": _files(run),
        "notes": _notes(record, result),
        "settings": _flat(settings),
        "predictions": _predictions(run, config, record, most_predictions, left_out).as_json(),
        "samples": read_samples(run.samples, learns, left_out),
        "curves": [curve.as_json() for curve in curves.values()],
    }
    _missing(document, weights, layers, counts, left_out)
    document["left_out"] = left_out
    return Description(name, run.path, document, curves, score["metric"], flops, left_out)


def _usable(path: str | Path) -> Path:
    """Raises CheckpointError for what can be the name of no folder."""
    if "\0" in str(path):
        raise CheckpointError("file-name", f"{str(path)!r} cannot be the name of a folder; name that of a run")
    return Path(path)


# --- history and state -----------------------------------------------------------------------------------------------


def _history(run: RunFolder, config: AnyConfig, left_out: dict[str, str]) -> tuple[dict[str, RunCurve], int]:
    """The curves, and how many values are left out of them."""
    units = config.batch_size * (config.context if isinstance(config, RunConfig) else 1)
    lines = JsonObjects(run.history_file)
    curves, strange = read_curves(lines, units)
    remarks = [lines.remark] if lines.remark is not None else []
    if strange:
        remarks.append(f"history.jsonl: {strange:,} values are not finite numbers and left out.")
    if not curves and not remarks:
        remarks.append("The run has recorded no step yet.")
    if remarks:
        left_out["curves"] = " ".join(remarks)
    return curves, strange


def _newest(run: RunFolder) -> Path | None:
    """The newest checkpoint; whether it is whole is looked at by who loads it."""
    with suppress(OSError):
        return max((path for path in run.checkpoints.glob("step-*") if (path / STATE).exists()), default=None)
    return None


def _status(
    run: RunFolder, config: AnyConfig, result: Mapping[str, Any] | None, curves: Mapping[str, RunCurve]
) -> dict[str, Any]:
    """Where a run stands, in a word and in a sentence, and the commands that follow."""
    steps = max((curve.points[-1][0] for curve in curves.values()), default=0)
    folder = shlex.quote(plain(str(run.path), 500))
    if result is not None:
        asks = ["predict --data FILE", "evaluate"] if isinstance(config, FineTuneConfig) else ["evaluate"]
        if getattr(config, "objective", "") in ("causal", "prefix_lm"):
            is_text = isinstance(config, RunConfig) and config.modality.startswith("bytes")
            asks.append(f"generate {'--prompt TEXT' if is_text else '--output FILE'}")
        verbs = [one.partition(" ") for one in asks]
        following = [f"asterism {verb} {folder}{' ' * bool(rest)}{rest}" for verb, _, rest in verbs]
        done = int(number(result.get("steps")) or steps)
        return {"state": "finished", "text": f"Finished after {done:,} steps.", "steps": done, "next": following}
    checkpoint = _newest(run)
    resume = [f"asterism {config.kind} --folder {folder} --resume"]
    if (holder := _holder(run.path / LOCK)) is not None:
        text = f"Being written by {holder}; {steps:,} of {config.steps:,} steps are recorded."
        return {"state": "running", "text": text, "steps": steps, "next": []}
    where = f"its newest checkpoint is {checkpoint.name}" if checkpoint else "it has no checkpoint, so it begins again"
    text = f"Stopped; {steps:,} of {config.steps:,} steps are recorded, and {where}."
    return {"state": "stopped", "text": text, "steps": steps, "next": resume}


def _holder(lock: Path) -> str | None:
    """Who writes in a run folder, by its lock; None for a process that has ended."""
    if why_not_read(lock) is not None:
        return None
    try:
        with lock.open(errors="replace") as file:
            text = plain(file.read(300), 300)
    except OSError:
        return None
    found = re.fullmatch(r"process (\d{1,9}) on (.+)", text)
    if found is None or found[2] != socket.gethostname():
        return text or None
    try:
        os.kill(int(found[1]), 0)  # sends nothing: whether the process is there
    except ProcessLookupError:
        return None
    except OSError:  # it is another user's
        pass
    return text


# --- figures ---------------------------------------------------------------------------------------------------------


def _score(config: AnyConfig, result: Mapping[str, Any] | None, curves: Mapping[str, RunCurve]) -> dict[str, Any]:
    """What the run is judged by, its value at the end or where the run stands, and what needs no model."""
    if isinstance(config, FineTuneConfig):
        return _task_score(result, curves)
    judged = JUDGED[config.objective]
    found: dict[str, Any] = {"metric": judged.metric, "label": label_of(judged.metric), "lower_is_better": True}
    values = {} if result is None else result
    baselines = numbers(values.get("baselines"))
    if judged.baseline is not None and (value := number(values.get(judged.baseline))) is not None:
        baselines["frequencies of tokens"] = value
    scored = number(values.get(judged.counted))
    others = {
        name.removeprefix("validation_"): value
        for name, value in numbers(dict(values)).items()
        if name.startswith("validation_") and name not in (judged.result, judged.counted)
    }
    last = _last(curves, judged.metric)
    return found | {
        "value": number(values.get(judged.result)) if result is not None else last,
        "is_final": result is not None,
        "scored": None if scored is None else f"{int(scored):,} {judged.unit} of the validation split",
        "scores": others,
        "baselines": baselines,
    }


def _task_score(result: Mapping[str, Any] | None, curves: Mapping[str, RunCurve]) -> dict[str, Any]:
    if result is None:
        on_the_way = [curve for curve in curves.values() if curve.is_validation]
        metric = on_the_way[0].figure if on_the_way else None
        scores, baselines, scored = {one.figure: one.points[-1][2] for one in on_the_way}, {}, None
    else:
        metric = plain(result["metric"], 60) if isinstance(result.get("metric"), str) else None
        scores = numbers(result.get("scores"))
        each = result.get("baselines")
        pairs = each.items() if isinstance(each, dict) else ()
        baselines = {plain(name, 60): value for name, one in pairs if (value := numbers(one).get(str(metric)))}
        counted = number(result.get("validation_examples"))
        scored = None if counted is None else f"{int(counted):,} validation examples"
    return {
        "metric": metric,
        "label": None if metric is None else label_of(metric),
        "lower_is_better": False,
        "value": None if metric is None else scores.get(metric),
        "is_final": result is not None,
        "scored": scored,
        "scores": scores,
        "baselines": baselines,
    }


def _last(curves: Mapping[str, RunCurve], metric: str) -> float | None:
    curve = curves.get(f"validation_{metric}")
    return None if curve is None else curve.points[-1][2]


def _cost(
    config: AnyConfig,
    record: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    curves: Mapping[str, RunCurve],
    weights: Weights | None,
    flops: float | None,
) -> dict[str, Any]:
    """Parameters, time, tokens, FLOPs and memory; None for what is not known."""
    values: Mapping[str, Any] = {} if result is None else result
    steps = int(number(values.get("steps")) or max((one.points[-1][0] for one in curves.values()), default=0))
    seconds = max((one.points[-1][1] for one in curves.values()), default=None)
    if (minutes := number(values.get("minutes"))) is not None:
        seconds = 60 * minutes
    length = _length(config, record)
    each_step = None if length is None else config.batch_size * length
    rates = [curve for name, curve in curves.items() if name.endswith("_per_second")]
    return {
        "parameters": number(values.get("parameters")) or (None if weights is None else weights.count),
        "weight_bytes": None if weights is None else weights.bytes,
        "steps": steps,
        "seconds": seconds,
        "tokens_per_step": each_step,
        "tokens": None if each_step is None else each_step * steps,
        "tokens_are_at_most": isinstance(config, FineTuneConfig),
        "flops_per_step": flops,
        "flops": None if flops is None else flops * steps,
        "speed": {label_of(one.name): _median([value for *_, value in one.points]) for one in rates if one.points},
        "peak_memory": number(record.get("peak_memory")),
    }


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _length(config: AnyConfig, record: Mapping[str, Any]) -> int | None:
    """Tokens of a row."""
    if isinstance(config, RunConfig):
        return config.context
    decided = record["decided"] if isinstance(record["decided"], dict) else {}
    return _tokens(decided.get("length") if config.length is None else config.length)


def target_length(config: AnyConfig, record: Mapping[str, Any]) -> int | None:
    """Tokens of what a decoder writes, the one that ends it included; None where nothing is written, or known."""
    if isinstance(config, FineTuneConfig):
        decided = record["decided"] if isinstance(record["decided"], dict) else {}
        return _tokens(decided.get("target_length"))
    if config.objective == "gap_sentences":
        return config.target_length or config.context // 2
    if config.objective == "span_corruption":
        return SpanSizes.fitting(config.context - 1).target_tokens + 1
    return None


def _tokens(value: Any) -> int | None:
    """A number of tokens that a row can have; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def _shape(folder: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The model's configuration: that of its folder, else the settings, else nothing."""
    if folder is not None:
        with suppress(AsterismError):
            document = read_json(folder / "config.json")
            if isinstance(document, dict):
                return document
    model = settings.get("model")
    return model if isinstance(model, dict) and settings.get("init_from") is None else {}


# --- everything else -------------------------------------------------------------------------------------------------


def _environment(record: Mapping[str, Any], config: AnyConfig) -> dict[str, str]:
    machine = record.get("machine")
    facts = {str(name): value for name, value in machine.items()} if isinstance(machine, dict) else {}
    versions = record["versions"] if isinstance(record["versions"], dict) else {}
    found = {"arithmetic": record["dtype"], "seed": config.seed, "parallel": config.parallel or "one process"}
    pairs = {**facts, **found, **{str(name): value for name, value in versions.items()}}
    return {plain(name.replace("_", " "), 60): plain(value, 200) for name, value in list(pairs.items())[:60]}


def _data(record: Mapping[str, Any], config: AnyConfig) -> dict[str, str]:
    corpus = record["corpus"]
    found = {"source": corpus.get("name", "?"), "SHA-256": corpus["sha256"]}
    for unit, sizes in corpus.items():
        if isinstance(sizes, dict):
            found |= {f"{split}, {unit}": f"{value:,.0f}" for split, value in numbers(sizes).items()}
        elif unit not in ("name", "sha256"):
            found[str(unit)] = sizes
    if isinstance(config, FineTuneConfig):
        found["reader"] = config.reader
    else:
        found |= {"modality": config.modality, "tokenizer": config.tokenizer}
    return {plain(name, 60): plain(value, 300) for name, value in list(found.items())[:60]}


def _files(run: RunFolder) -> dict[str, str]:
    """What there is in the folder, and where."""
    there = {
        "model": run.model,
        "checkpoint": _newest(run),
        "history": run.history_file,
        "picture of the loss": run.picture,
        "predictions": run.predictions,
        "examples to read": run.page,
        "for TensorBoard": run.tensorboard,
        "metadata": run.run_file,
    }
    return {what: plain(str(path), 500) for what, path in there.items() if path is not None and path.exists()}


def _notes(record: Mapping[str, Any], result: Mapping[str, Any] | None) -> list[str]:
    notes = record["notes"] if result is None else result.get("notes")
    return [plain(note, 500) for note in notes[:50]] if isinstance(notes, list) else []


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by name, those of the model as `model.NAME`, as flags have them."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            simple = isinstance(value, bool | int | float) or value is None
            found[f"{prefix}{name}"] = value if simple else plain(value, 400)
    return found


def _predictions(
    run: RunFolder, config: AnyConfig, record: Mapping[str, Any], most: int, left_out: dict[str, str]
) -> Predictions:
    if not isinstance(config, FineTuneConfig):
        return Predictions()
    if not run.predictions.exists():
        left_out["predictions"] = "The run is not finished: it has written no predictions yet."
        if record["result"] is not None:
            left_out["predictions"] = "predictions.jsonl is missing."
        return Predictions()
    found = read_predictions(run.predictions, config_to_dict(config), record["corpus"]["sha256"], most)
    if found.remarks:
        left_out["predictions"] = " ".join(found.remarks)
    return found


def _missing(
    document: Mapping[str, Any], weights: Weights | None, layers: Layers, strange: int, left_out: dict[str, str]
) -> None:
    """Sentences for the parts that the folder does not hold."""
    if layers.remark is not None:
        left_out["patterns"] = layers.remark
    if weights is None:
        left_out["cost"] = "The folder holds no weights that can be read: their number, and FLOPs, are not known."
    elif document["cost"]["flops_per_step"] is None:
        left_out["cost"] = (
            "FLOPs are left out: the folder does not hold the sizes, patterns and lengths that they need."
        )


def by_name(runs: Iterable[Description]) -> dict[str, Description]:
    """Runs by names that differ: by their folders where folders share a name."""
    found: dict[str, Description] = {}
    for run in runs:
        name, at = run.name, 2
        while name in found:
            name, at = f"{run.name} ({at})", at + 1
        run.name = run.document["name"] = name
        found[name] = run
    return found
