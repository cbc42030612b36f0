"""A run, from its configuration to evaluation, generation and reports.

    RunConfig --resolve--> Setup --train--> run folder --open_run--> Run
                                                                     evaluate(Run), generate(Run, prompt), report(Run)

A `RunConfig` trains a model of ours on bytes or text. A `FineTuneConfig` trains any encoder or encoder-decoder on
examples of a task. The objective decides what is learned and how; the code below does not depend on any one of them.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated
from asterism.training.data.corpora.made_once import shared
from asterism.training.data.corpora.splits import Split
from asterism.training.objectives.footprint import require_memory_to_load
from asterism.training.run.arithmetic import arithmetic, settled, weights_dtype
from asterism.training.run.checkpoint import load_weights
from asterism.training.run.device import uses_cuda
from asterism.training.run.division import weighed
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.fitting import fit
from asterism.training.run.folder import RENEWED, RunFolder
from asterism.training.run.further import LIMITS, goes_further, reopen
from asterism.training.run.metrics import Evaluation, Question, Report
from asterism.training.run.objective import Objective
from asterism.training.run.processes import Processes, compare, joined
from asterism.training.run.progress import Display, make_display, watching
from asterism.training.run.setup import Setup, read_shape
from asterism.training.settings.budget import Budget
from asterism.training.settings.configuration import AnyConfig, RunConfig, config_to_dict
from asterism.training.settings.parallel import mesh_sizes
from asterism.training.settings.registry import OBJECTIVES
from asterism.training.settings.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Run:
    """An opened run: its finished model, or that of its newest checkpoint, in evaluation mode.

    `record` holds the contents of run.json.
    """

    folder: RunFolder
    record: dict[str, Any]
    objective: Objective[Any]
    model: PreTrainedModel

    @property
    def config(self) -> AnyConfig:
        """The configuration. Its dtype is the one that the run computes in, also if that was left to the machine."""
        return self.objective.config

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer of the model, or None if the model reads bytes."""
        return self.objective.tokenizer


def train(config: AnyConfig, folder: str | Path, *, resume: bool = False, progress: bool = True) -> Report:
    """Train a model into a run folder, or resume the run in it.

    The model is new, or the one that the configuration names. With `resume`, the configuration must be the recorded
    one, and a finished run is only reported, or trained further if `steps` is greater than those it took (its learning
    rate then rises and falls once more: `run/further.py`). The data may have moved, if their hash is the same.
    `progress` shows a bar or lines on stderr. On SIGINT and SIGTERM, the current step ends, a checkpoint is written,
    and the run stops. The caller's random generators do not change.

    Raises ConfigurationError, PatternError or DataError for a run that cannot work, CheckpointError for a folder that
    is in use or damaged, and NonFiniteLossError if training diverges. The last checkpoint is kept.
    """
    run = RunFolder(folder)
    with quiet_transformers(), joined(config) as processes, ExitStack() as stack:
        if processes.decided(lambda: _is_finished(run, config) if resume else run.refuse_existing()):
            return report(folder)
        with processes.agreed():
            if processes.leads:
                stack.enter_context(run.held())
                if resume and isinstance(config, RunConfig) and goes_further(run, config):
                    reopen(run, config)
        own = processes.decided(lambda: str(run.latest_checkpoint() or "") if resume else "")
        display = stack.enter_context(closing(make_display(progress and processes.leads)))
        display.doing("choosing the arithmetic")  # may time matrix products
        dtype = processes.decided(lambda: (run.read_settled() if resume else settled(config)).dtype)
        display.doing("reading the data")
        with shared(_name(processes)), processes.agreed():
            setup = resolve(replace(config, dtype=dtype), Path(own) if own else None)
        return fit(replace(setup, asked=config), run, processes, display, resume=resume)


def _is_finished(run: RunFolder, config: AnyConfig) -> bool:
    """Whether the run to resume is finished. Raises ConfigurationError if its settings are different."""
    recorded, finished = run.read_config(), run.read_record()["result"] is not None
    if goes_further(run, config):
        recorded, finished = replace(recorded, **{name: getattr(config, name) for name in LIMITS}), False
    _refuse_other_settings(recorded, config, run if finished else None)
    if finished:
        run.tidy()
        if run.is_renewed(config):
            _follow(run, config)
    return finished


def _follow(run: RunFolder, config: AnyConfig) -> None:
    """Record where the data of a finished run are now. Raises DataError for different data."""
    setup = resolve(replace(config, dtype=run.read_settled().dtype), run.weights())
    run.refuse_other_data(setup.corpus.record())
    with run.held():
        run.renew(config, setup.objective.decided())


def resolve(config: AnyConfig, own: Path | None = None) -> Setup:
    """Prepare everything that a run needs before its first step: arithmetic, model configuration, tokenizer, data,
    weights, objective.

    `own` is the newest checkpoint of a run that is resumed. Raises what `train` raises.
    """
    return replace(OBJECTIVES.load(config.objective).resolve(settled(config), own), asked=config)


def open_run(folder: str | Path) -> Run:
    """Open the run in a folder, of any kind, without its data. The model is on the GPU if there is one. Another process
    may be training the run.

    Raises CheckpointError if the folder is not a run, is damaged, or has no weights yet.
    """
    run = RunFolder(folder)
    while True:
        before = run.newest()
        try:
            return _opened(run)
        except (AsterismError, OSError):
            if run.newest() == before:
                raise  # otherwise a training process has replaced the checkpoint that was being read


def _opened(run: RunFolder) -> Run:
    record, config, weights = run.read_record(), run.read_settled(), run.weights()
    require_memory_to_load(weights, "")
    with quiet_transformers(), isolated(0):  # weights are drawn, and then replaced by the stored ones
        try:
            objective = OBJECTIVES.load(config.objective).restore(config, weights, record["decided"])
        except (AttributeError, KeyError, TypeError) as error:
            raise CheckpointError("damaged-file", f"{run.run_file} is damaged: decided: {error}") from error
        model = objective.new_model(read_shape(weights))
    hidden: Any = model  # whose `to` hides self in transformers' types
    hidden.to(weights_dtype(config.dtype))
    load_weights(weights, model)
    hidden.to("cuda" if uses_cuda() else "cpu")
    model.eval()
    return Run(folder=run, record=record, objective=objective, model=model)


def evaluate(
    run: Run | str | Path,
    *,
    data: str | Path | None = None,
    split: Split | None = None,
    minimum_context: int | Sequence[int] = 0,
    limit: int | None = None,
    reader: str | None = None,
    parallel: str = "",
    dense_exchange: bool = False,
    progress: bool = True,
) -> Evaluation:
    """Score a run, or the run in a folder, on held-out data.

    `data` is a file or folder; None means the run's own data. For bytes and text, `split` chooses a part (by default
    "validation"). For a task, the run's own data are the held-out examples. `limit` scores only the first `limit` bytes
    (at least one window) or examples. `minimum_context` is for bytes: every scored byte has at least that many bytes
    before it in its window, and there is one score for each value. `reader` is for tasks: how long documents are read,
    by default as in training.

    If a launcher started several processes, `parallel` says how they divide the work, independently of training. By
    default they take turns at rows (dp). With cp they divide the tokens of rows. `dense_exchange` allows patterns that
    move as much as dense attention. fsdp is refused. `progress` shows a bar or lines on stderr.

    Raises CheckpointError, DataError, and ConfigurationError for arguments that this kind of run does not take.
    """
    question = Question(
        data=None if data is None else str(data),
        split=split,
        minimum_context=(minimum_context,) if isinstance(minimum_context, int) else tuple(minimum_context),
        reader=reader,
    )
    if limit is not None and limit < 1:
        raise ConfigurationError("limit-range", f"limit must be at least 1 byte or example, got {limit}")
    config, sizes = _folder(run).read_config(), mesh_sizes(parallel)
    if sizes.get("fsdp", 1) > 1:
        raise ConfigurationError(
            "mesh-of-evaluation", "parallel: an evaluation keeps the whole model in every process: use dp and cp"
        )
    if sizes.get("cp", 1) > 1 and not isinstance(config, RunConfig):
        raise ConfigurationError(
            "mesh-of-task", "parallel: the rows of a task's examples cannot be divided by cp: use dp"
        )
    with _opened_by_all(run, parallel, dense_exchange, progress) as (opened, processes, display):
        processes = weighed(opened.config, opened.model.config, opened.objective.longest, processes)
        evaluator = Evaluator(Budget(limit), processes, watching(display))
        with shared(_name(processes)):
            return opened.objective.answer(opened.model, question, opened.record["corpus"]["sha256"], evaluator)


def generate(
    run: Run | str | Path,
    prompt: bytes,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    parallel: str = "",
    dense_exchange: bool = False,
) -> bytes:
    """Sample `length` bytes that continue `prompt`, from a run or the run in a folder, with an explicit seed.

    A run with a tokenizer samples `length` tokens, or fewer if the text ends before, and reads `prompt` as UTF-8.
    Temperature 0 takes the likeliest byte or token. `top_k` keeps the k likeliest, and `top_p` the fewest whose
    probabilities reach that sum.

    With `parallel`, such as "cp=4", the processes that a launcher started divide the tokens of the prompt and read it
    in parallel. Keys stay in their process. All processes pass the same arguments and get the same bytes, which are
    those of one process except for rounding. `dense_exchange` allows patterns that move as much as dense attention.

    Raises CheckpointError, and ConfigurationError for settings that cannot work, for a run that does not generate, and
    for a prompt and length beyond the positions of the model.
    """
    settings = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed).arguments(length)
    if not parallel:
        opened = run if isinstance(run, Run) else open_run(run)
        start = opened.objective.prompt(prompt)
        with isolated(seed):
            values = opened.objective.continued(opened.model, start, settings)
        return opened.objective.written(start, values)
    if any(size > 1 for name, size in mesh_sizes(parallel).items() if name != "cp"):
        raise ConfigurationError(
            "mesh-of-prompt", f"parallel: a prompt is one row, whose tokens cp divides, got {parallel!r}"
        )
    with _opened_by_all(run, parallel, dense_exchange, progress=False) as (opened, processes, _):
        asked = {"prompt": hashlib.sha256(prompt).hexdigest(), "sampling": str(settings), "seed": str(seed)}
        compare(processes, "what is asked:", asked)
        with isolated(seed):
            return _generated_together(opened, prompt, {**settings, "seed": seed}, processes)


def _generated_together(run: Run, prompt: bytes, sampling: dict[str, Any], processes: Processes) -> bytes:
    """Continue a prompt whose tokens are divided among the processes; the result is the same in all of them."""
    start = run.objective.prompt(prompt)
    processes = weighed(run.config, run.model.config, (max(start.shape[1], *run.objective.longest),), processes)
    model: Any = run.model
    own = processes.tokens(model, {"input_ids": start.to(model.device)})
    with processes.sharing(), arithmetic(run.config.dtype, model.device):
        values = model.generate(**own, **sampling, **run.objective.ending)
    return run.objective.written(start, values.cpu())


def _name(processes: Processes) -> str | None:
    """The name under which the processes of a run share files that one of them makes of the data."""
    name: str | None = None if processes.alone else processes.decided(lambda: uuid.uuid4().hex)
    return name


def _folder(run: Run | str | Path) -> RunFolder:
    return run.folder if isinstance(run, Run) else RunFolder(run)


@contextmanager
def _opened_by_all(
    run: Run | str | Path, parallel: str, dense_exchange: bool, progress: bool
) -> Iterator[tuple[Run, Processes, Display]]:
    """The run as all processes opened it, these processes, independently of training, and their display."""
    asked = replace(_folder(run).read_config(), parallel=parallel, dense_exchange=dense_exchange)
    with (
        quiet_transformers(),
        joined(asked) as processes,
        closing(make_display(progress and processes.leads)) as display,
    ):
        display.doing("loading the model")
        with processes.agreed():
            opened = run if isinstance(run, Run) else open_run(run)
        yield opened, processes, display


def report(run: Run | str | Path) -> Report:
    """The report of a finished run, from its run.json. Raises CheckpointError for an unfinished run."""
    folder = _folder(run)
    record, config = folder.read_record(), folder.read_config()
    if record["result"] is None:
        raise CheckpointError(
            "run-not-finished",
            f"{folder.path} is not finished: resume it with --resume, or score it with `asterism evaluate`",
        )
    try:
        made: Report = OBJECTIVES.load(config.objective).report(record["result"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError("damaged-file", f"{folder.run_file} is damaged: result: {error}") from error
    return made


_MAY_CHANGE = (*RENEWED, "parallel", "dense_exchange", "process_timeout")
"""Settings that do not influence the numbers of training."""


def _refuse_other_settings(recorded: AnyConfig, asked: AnyConfig, finished: RunFolder | None) -> None:
    """Raise ConfigurationError if the run to resume began with other settings. Data may have moved, the number of
    processes may differ, and the report may cover more data unless it exists already, in the folder `finished`."""
    if recorded.kind != asked.kind:
        raise ConfigurationError(
            "other-kind-of-run",
            f"resume: this run began with `asterism {recorded.kind}`, not {asked.kind}: resume it with `asterism"
            f" {recorded.kind} --resume`",
        )
    before, now = config_to_dict(recorded), config_to_dict(asked)
    for name in before:
        is_reported = name in ("report_bytes", "report_examples")
        may_change = name in _MAY_CHANGE and (finished is None or not is_reported)
        if before[name] == now[name] or may_change:
            continue
        remedy = ""
        if finished is not None:
            other = f"train on from its weights with --init-from {finished.path}"
            if isinstance(recorded, RunConfig):
                other = f"train it further with --resume --steps MORE, or {other}"
            score = f"score more of the data with `asterism evaluate {finished.path}`"
            remedy = f"; it is finished: {score if is_reported else other}"
        old, new = getattr(recorded, name), getattr(asked, name)
        raise ConfigurationError(
            "setting-changed", f"resume: got {name} {new!r}, but the run began with {old!r}{remedy}"
        )
