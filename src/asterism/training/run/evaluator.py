"""Score a model on batches: how many, by which processes, and with which progress display.

An objective defines a batch and its metrics. Only this file handles processes that take turns at batches or share the
tokens of rows.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from asterism.training.run.arithmetic import arithmetic
from asterism.training.run.processes import Processes
from asterism.training.run.progress import Watch, unwatched
from asterism.training.settings.budget import Budget
from asterism.training.settings.configuration import TrainingConfig


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Runs an evaluation, in the same way during a run, at its end, and on request.

    budget     how much data it may score
    processes  who does it together
    watch      is told how many batches are done, and how many there are
    """

    budget: Budget = Budget()
    processes: Processes = Processes()
    watch: Watch = unwatched

    @torch.no_grad()
    def sums(
        self,
        model: PreTrainedModel,
        config: TrainingConfig,
        rows: Sequence[int],
        read: Callable[[np.ndarray], Mapping[str, Tensor]],
        measure: Callable[[Any, Mapping[str, Tensor]], Mapping[str, float]],
        *,
        arguments: Collection[str] | None = None,
        of_rows: Collection[str] = (),
    ) -> dict[str, float]:
        """The sums over all rows, the same in all processes. The model is left in evaluation mode.

        read       rows of these numbers, int64 [B], as a batch: tensors whose first axis counts rows
        measure    named sums over a batch, from the model's output and the batch, on the model's device; where
                   processes share the tokens of rows, over those of this process
        arguments  which tensors of a batch the model is given; None for all of them
        of_rows    the names of sums over rows, of which every process that shares their tokens finds the whole

        A batch has as many rows as a slice of the run's batches. Sums are in float64, so the result does not depend on
        the number of batches.
        """
        model.eval()
        numbers, size = np.asarray(rows, dtype=np.int64), config.micro_batch_size
        batches = -(-len(numbers) // size)
        found: defaultdict[str, float] = defaultdict(float)
        for number, counts in self.processes.share(batches):
            self.watch(number, batches)
            whole = read(numbers[number * size : (number + 1) * size])
            batch = self.processes.tokens(model, {name: one.to(model.device) for name, one in whole.items()})
            given = {name: one for name, one in batch.items() if arguments is None or name in arguments}
            with self.processes.sharing(), arithmetic(config.dtype, model.device):
                output = model(**given)
            for name, value in measure(output, batch).items():
                is_own = counts and (name not in of_rows or self.processes.shard == 0)
                found[name] += float(value) if is_own else 0.0
        return dict(zip(found, self.processes.total(list(found.values())), strict=True))
