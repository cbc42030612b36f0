"""The setup of a run before its first step, and its first model.

RunConfig --resolve--> Setup --train--> run folder --open_run--> Run
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from asterism.errors import CheckpointError
from asterism.files import DAMAGED, LOCAL, read_json, why_unread
from asterism.models import AsterismConfig  # registers our models with the Auto classes
from asterism.randomness import derive, isolated
from asterism.training.run.arithmetic import weights_dtype
from asterism.training.settings.configuration import AnyConfig

if TYPE_CHECKING:
    from asterism.training.run.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that the configuration, the data and the existing models decide about a run.

    asked      the configuration as it was given, which run.json keeps; that of the objective has filled in what only
               the data and the model say
    shape      the model's configuration
    corpus     the data
    init_from  the model folder with the weights of the first step; None for new ones, and for a run that goes on
    objective  what is learned
    """

    asked: AnyConfig
    shape: PreTrainedConfig
    corpus: Any
    init_from: Path | None
    objective: "Objective[Any]"

    @property
    def config(self) -> AnyConfig:
        """The configuration by which the run computes, that of the objective."""
        return self.objective.config

    def build(self, device: torch.device) -> tuple[PreTrainedModel, list[str]]:
        """The model of the first step, and notes on it; no global generator is touched.

        New weights are drawn on the CPU, in float32, from the run's seed. Raises ConfigurationError or PatternError for
        a shape or pattern that cannot work, CheckpointError for weights that do not fit.
        """
        with isolated(derive(self.config.seed)):
            model, notes = self.objective.initial_model(self.shape, self.init_from)
        model.to(device, weights_dtype(self.config.dtype))  # type: ignore[arg-type]  # transformers hides self
        return model, notes


def read_shape(folder: Path, what: str = "") -> Any:
    """The configuration of the model in a folder, for weights in float32. Raises CheckpointError."""
    document = read_json(folder / "config.json")
    try:
        if isinstance(document, dict) and document.get("model_type") == AsterismConfig.model_type:
            return AsterismConfig.from_dict({**document, "dtype": "float32"})
        return AutoConfig.from_pretrained(folder, **LOCAL, dtype="float32")
    except (OSError, *DAMAGED) as error:
        raise CheckpointError(
            "damaged-configuration", f"{what}{folder / 'config.json'} is damaged: {why_unread(error)}"
        ) from error
