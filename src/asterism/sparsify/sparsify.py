"""The way from a model, texts and a budget to a schedule, measured on texts that had no say in it."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from asterism.budget import Budget
from asterism.errors import CheckpointError, ConfigurationError
from asterism.evaluation import CausalModel
from asterism.files import remove_leftovers, replacing
from asterism.models import use_pattern
from asterism.models.drop_in.layers import describe_attention
from asterism.quiet import quiet_transformers
from asterism.sparsify.baselines import baselines
from asterism.sparsify.choosing import cheapest, refined
from asterism.sparsify.grid import Grid, grid_of
from asterism.sparsify.losses import Losses, Record
from asterism.sparsify.mass import lost_mass
from asterism.sparsify.prices import measure_prices
from asterism.sparsify.result import Measured, Sparsified
from asterism.sparsify.texts import Texts
from asterism.training.run.arithmetic import undisturbed
from asterism.training.run.folder import RunFolder
from asterism.training.run.lock import locked
from asterism.training.tasks.models import ends, longest

RECORD = "record.json"
"""The file of measurements in the folder of the results."""


def sparsify(
    causal: CausalModel,
    texts: Texts,
    budget: Budget,
    output: Path,
    *,
    window: int = 124,
    trials: int = 64,
    tell: Callable[[str], None] = lambda _: None,
) -> Sparsified:
    """Choose a pattern for each layer and key head of a causal model of transformers, within a budget.

    causal   the model, of `open_causal`; its own windows are what its layers begin with
    texts    pieces of text to choose by and to judge by, of `read_texts`
    budget   what may be left of its attention, at the length of the pieces
    output   a folder for the record; what it holds of the same model, texts and settings is not measured again
    window   that of the least level, `sinks(first=4, window=...)`; the others double it
    trials   exchanges that are tried after the price list has been spent
    tell     is called with lines about what is being done

    The model follows the schedule afterwards. Raises ConfigurationError for a model, a budget or a length that does not
    fit, and CheckpointError for a folder of other settings and for losses that are not finite.
    """
    grid = _grid(causal, texts.length, window)
    grid.limit(budget)  # refused before a folder is made
    _require_folder(output)
    with undisturbed(), locked(output):
        remove_leftovers(output)
        return _sparsified(causal, texts, budget, grid, _record(causal, texts, window, output), trials, tell)


def _require_folder(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise CheckpointError("output-not-a-folder", f"{output} is a file: choose another --output")


def _sparsified(
    causal: CausalModel,
    texts: Texts,
    budget: Budget,
    grid: Grid,
    record: Record,
    trials: int,
    tell: Callable[[str], None],
) -> Sparsified:
    """What `sparsify` gives, with a record that nobody else writes."""
    kind, limit = budget.kind, grid.limit(budget)
    mass = record.document.get("mass")
    if mass is None:
        tell("what each head reads")
        mass = lost_mass(causal.model, grid, texts.chosen_by[0])
        record.note(mass=mass)
    losses = Losses(causal, texts.pieces, record)
    prices = measure_prices(losses, grid, texts.choosing, mass, tell)
    spent = cheapest(prices, grid, kind, limit)
    choice = refined(losses, grid, prices, spent, (kind, limit, trials), texts.choosing, tell)
    compared = {"as it is": grid.own, "least": grid.least, "price list": spent, "refined": choice}
    schedules = {name: (grid.patterns(one), grid.total(one, kind)) for name, one in compared.items()}
    schedules |= baselines(grid, prices, kind, limit)
    rows = []
    for name, (schedule, total) in sorted(schedules.items(), key=lambda one: _ORDER.get(one[0], 2)):
        tell(f"comparing: {name}")
        nats = losses.mean(schedule, texts.choosing), losses.mean(schedule, texts.judging)
        share = total / grid.total(grid.own, kind)
        rows.append(Measured(name, grid.mean(total, kind), share, *nats))
    use_pattern(causal.model, list(grid.patterns(choice)), native_window="replace")
    promised, seconds = prices.dense + prices.rise(spent), record.document["seconds"]
    result = Sparsified(str(causal.folder), str(budget), grid, choice, prices, promised, tuple(rows), seconds)
    record.note(results={**record.document.get("results", {}), str(budget): result.as_json()})
    return result


_ORDER = {"as it is": 0, "least": 1, "price list": 3, "refined": 4}
"""Of the rows of the table; others of the same cost stand between."""


def _grid(causal: CausalModel, length: int, window: int) -> Grid:
    """The levels of a model, if it can read so many tokens."""
    attention = describe_attention(causal.model.config)
    if not attention.hides_future:
        raise ConfigurationError("model-not-causal", f"{attention.model} reads the future; give a causal model")
    most = longest(causal.model.config)
    if most is not None and ends(causal.model.config) and most < length:
        raise ConfigurationError(
            "length-beyond-model", f"{attention.model} reads at most {most:,} tokens: give --length {most} or less"
        )
    return grid_of(attention, length, window)


def _record(causal: CausalModel, texts: Texts, window: int, output: Path) -> Record:
    """The measurements in a folder."""
    identity = {name: value for name, value in causal.identity().items() if name != "model"}
    settings = {"length": texts.length, "window": window, "texts": texts.digest, "versions": _versions(), **identity}
    return Record(output / RECORD, {name: settings[name] for name in sorted(settings)})


def _versions() -> dict[str, str]:
    """What else decides the digits of a loss."""
    return {name: version(name) for name in ("torch", "transformers")}


def write_model(causal: CausalModel, folder: Path) -> None:
    """Write the model with its schedule, and its tokenizer, to a new folder, or raise CheckpointError."""
    RunFolder(folder).refuse_existing()
    remove_leftovers(folder.absolute().parent, folder.name)
    with quiet_transformers(), replacing(folder) as temporary:
        causal.model.save_pretrained(temporary)
        causal.tokenizer.save_pretrained(temporary)
