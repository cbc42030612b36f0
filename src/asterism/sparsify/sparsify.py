"""The way from a model, texts and a budget to a schedule, measured on texts that had no say in it."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from torch import Tensor

from asterism.errors import CheckpointError, ConfigurationError
from asterism.evaluation import CausalModel
from asterism.files import replacing
from asterism.models import use_pattern
from asterism.models.drop_in.layers import describe_attention
from asterism.quiet import quiet_transformers
from asterism.sparsify.baselines import baselines
from asterism.sparsify.budget import Budget
from asterism.sparsify.choosing import cheapest, refined
from asterism.sparsify.grid import grid_of
from asterism.sparsify.losses import Losses, Record
from asterism.sparsify.mass import lost_mass
from asterism.sparsify.prices import measure_prices
from asterism.sparsify.result import Measured, Sparsified
from asterism.sparsify.texts import Texts, read_texts
from asterism.training.run.folder import RunFolder
from asterism.training.tasks.models import ends, longest

RECORD = "record.json"
"""The file of measurements in the folder of the results."""


def sparsify(
    causal: CausalModel,
    data: Path,
    budget: Budget,
    output: Path,
    *,
    length: int = 2048,
    counts: tuple[int, int] = (4, 8),
    window: int = 124,
    trials: int = 64,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Sparsified:
    """Choose a pattern for each layer and key head of a causal model of transformers, within a budget.

    causal   the model, of `open_causal`; its own windows are what its layers begin with
    data     texts, as `read_texts` reads them
    budget   what may be left of its attention, at `length` tokens
    output   a folder for the record; what it holds of the same model, texts and settings is not measured again
    counts   pieces of text to choose by, and held out
    window   that of the least level, `sinks(first=4, window=...)`; the others double it
    trials   exchanges that are tried after the price list has been spent
    tell     is called with lines about what is being done

    The model follows the schedule afterwards. Raises ConfigurationError for a model, a budget or a length that does not
    fit, DataError for texts, CheckpointError for a folder of other settings and for losses that are not finite.
    """
    attention = describe_attention(causal.model.config)
    if not attention.hides_future:
        raise ConfigurationError("model-not-causal", f"{attention.model} reads the future; give a causal model")
    most = longest(causal.model.config)
    if most is not None and ends(causal.model.config) and most < length:
        raise ConfigurationError(
            "length-beyond-model", f"{attention.model} reads at most {most:,} tokens: give --length {most} or less"
        )
    grid = grid_of(attention, length, window)
    limit = grid.limit(budget)
    texts = read_texts(causal, data, length, counts, seed)
    settings = {"length": length, "window": window, "texts": texts.digest, "versions": _versions(), **causal.identity()}
    if output.exists() and not output.is_dir():
        raise CheckpointError("output-not-a-folder", f"{output} is a file: choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    record = Record(output / RECORD, {name: settings[name] for name in sorted(settings) if name != "model"})
    pieces = _named(texts)
    losses = Losses(causal, pieces, record)
    choosing = [name for name in pieces if name.startswith("chosen")]
    judging = [name for name in pieces if name.startswith("held")]

    mass = record.document.get("mass")
    if mass is None:
        tell("what each head reads")
        mass = lost_mass(causal.model, grid, texts.chosen_by[0])
        losses.followed = ()
        record.note(mass=mass)
    prices = measure_prices(losses, grid, choosing, mass, tell)
    spent = cheapest(prices, grid, budget.kind, limit)
    bounds = budget.kind, limit, trials
    choice, _ = refined(losses, grid, prices, spent, bounds, choosing, tell)
    compared = {
        "as it is": (grid.patterns(grid.own), grid.total(grid.own, budget.kind)),
        "least": (grid.patterns(grid.least), grid.total(grid.least, budget.kind)),
        **baselines(grid, prices, budget.kind, limit),
        "price list": (grid.patterns(spent), grid.total(spent, budget.kind)),
        "refined": (grid.patterns(choice), grid.total(choice, budget.kind)),
    }
    rows = []
    for name, (schedule, total) in compared.items():
        tell(f"comparing: {name}")
        nats = losses.mean(schedule, choosing), losses.mean(schedule, judging)
        own = grid.total(grid.own, budget.kind)
        rows.append(Measured(name, schedule, grid.mean(total, budget.kind), total / own, *nats))
    use_pattern(causal.model, list(grid.patterns(choice)), native_window="replace")
    result = Sparsified(
        str(causal.folder),
        str(budget),
        grid,
        choice,
        prices,
        prices.dense + prices.rise(spent),
        tuple(rows),
        record.document["seconds"],
    )
    record.note(results={**record.document.get("results", {}), str(budget): result.as_json()})
    return result


def _versions() -> dict[str, str]:
    """What else decides the digits of a loss."""
    return {name: version(name) for name in ("torch", "transformers")}


def _named(texts: Texts) -> dict[str, Tensor]:
    chosen = {f"chosen by {number}": ids for number, ids in enumerate(texts.chosen_by)}
    return chosen | {f"held out {number}": ids for number, ids in enumerate(texts.held_out)}


def write_model(causal: CausalModel, folder: Path) -> None:
    """Write the model with its schedule, and its tokenizer, to a new folder, or raise CheckpointError."""
    RunFolder(folder).refuse_existing()
    with quiet_transformers(), replacing(folder) as temporary:
        causal.model.save_pretrained(temporary)
        causal.tokenizer.save_pretrained(temporary)
