"""Merge the adapter of a run into its base: a model folder that needs neither PEFT nor the base."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asterism.errors import ConfigurationError
from asterism.files import replacing
from asterism.quiet import quiet_transformers
from asterism.training.pipeline import Run, open_run
from asterism.training.run.adapters import has_adapter, merge_adapter
from asterism.training.run.folder import RunFolder

_TOKENS = 64
"""Tokens of the row on which the models are compared."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A merged model.

    `error` is the largest difference of a logit to the model with its adapter, relative to the largest logit.
    """

    run: str
    folder: str
    parameters: int
    pattern: str | list[str] | None
    error: float

    def __str__(self) -> str:
        followed = "none" if self.pattern is None else str(self.pattern)
        return "\n".join(
            [
                f"{self.run}, {self.parameters:,} parameters",
                f"pattern    {followed}",
                f"checked    logits differ by {self.error:.1g} of the largest",
                f"saved in {self.folder}",
            ]
        )


def merge(run: Run | str | Path, output: str | Path) -> Merged:
    """Write the model of a run to a new folder, its adapter added to the weights; with its pattern and tokenizer.

    The run is not changed, except for a `Run` that is given: its model is merged, too.

    Raises ConfigurationError for a run without an adapter, and CheckpointError for a folder that is not empty.
    """
    folder = Path(output)
    RunFolder(folder).refuse_existing()
    opened = run if isinstance(run, Run) else open_run(run)
    model: Any = opened.model
    if not has_adapter(model):
        raise ConfigurationError(
            "no-adapter", f"{opened.folder.path} has no adapter to merge: its model is already whole, in model/"
        )
    row = torch.arange(_TOKENS, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    with quiet_transformers(), torch.no_grad():
        before = model(input_ids=row, use_cache=False).logits
        merge_adapter(model)
        after = model(input_ids=row, use_cache=False).logits
        with replacing(folder) as temporary:
            model.save_pretrained(temporary)
            opened.objective.save_files(temporary)
    return Merged(
        run=str(opened.folder.path),
        folder=str(folder),
        parameters=model.num_parameters(),
        pattern=model.config.asterism_pattern,
        error=float((after - before).abs().max() / before.abs().max()),
    )
