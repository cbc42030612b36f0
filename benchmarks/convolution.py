"""What models of bases are compared with: a convolutional net in the manner of DeePromoter, and logistic regressions.

DeePromoter (Oubounyt 2019): parallel convolutions of widths 27, 14 and 7 over one-hot bases, max-pooling, a
bidirectional LSTM, dense layers. Windows of thousands of bases are pooled as much as leaves about 100 places to the
LSTM. Of the weights that a run passes through, those are kept that do best on the validation examples.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from asterism.randomness import isolated
from asterism.training.tasks.kinds.promoter import COLUMN, PromoterAnswers

Part = tuple[list[str], np.ndarray]
"""Letters and labels of the examples of a split."""

WIDTHS, CHANNELS, PLACES = (27, 14, 7), 32, 100
BATCH, CHECKS = 32, 8
LONGEST_WORD = 6
MIDDLE = 800


class Convolution(nn.Module):
    """Logits [B] of sequences int64 [B, length] of 0 to 4, of which 4 is no base."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.pool = max(6, length // PLACES)
        self.convolutions = nn.ModuleList(nn.Conv1d(4, CHANNELS, width, padding=width // 2) for width in WIDTHS)
        self.lstm = nn.LSTM(CHANNELS * len(WIDTHS), CHANNELS, batch_first=True, bidirectional=True)
        self.dense = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(2 * CHANNELS * (length // self.pool), 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        bits = nn.functional.one_hot(numbers, 5)[..., :4].float().transpose(1, 2)
        seen = torch.cat([torch.relu(one(bits))[..., : bits.shape[2]] for one in self.convolutions], dim=1)
        pooled = nn.functional.dropout(nn.functional.max_pool1d(seen, self.pool), 0.2, self.training)
        states, _ = self.lstm(pooled.transpose(1, 2))
        return self.dense(states.flatten(1))[:, 0]


def learn_convolution(train: Part, validation: Part, test: Part, *, seed: int, seconds: float) -> dict[str, Any]:
    """Scores on the test examples after so many seconds of the processor."""
    inputs = [(_numbers(letters), torch.from_numpy(labels).float()) for letters, labels in (train, validation, test)]
    with isolated(seed):
        net = Convolution(inputs[0][0].shape[1])
        best, weights, steps, spent = -1.0, net.state_dict(), 0, 0.0
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        batches, began = _batches(len(train[0]), seed), time.process_time()
        for check in range(CHECKS):
            while spent < seconds * (check + 1) / CHECKS:
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 * (1 - min(1.0, spent / seconds))
                rows = next(batches)
                loss = nn.functional.binary_cross_entropy_with_logits(net(inputs[0][0][rows]), inputs[0][1][rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                steps, spent = steps + 1, time.process_time() - began
            before = time.process_time()
            if (found := _scored(_said(net, inputs[1][0]), validation[1])["f1"]) > best:
                best, weights = found, {name: one.clone() for name, one in net.state_dict().items()}
            began += time.process_time() - before  # looking on is no part of the budget
        net.load_state_dict(weights)
    return {
        "scores": _scored(_said(net, inputs[2][0]), test[1]),
        "examples": len(test[0]),
        "steps": steps,
        "training_seconds": spent,
        "parameters": sum(one.numel() for one in net.parameters()),
    }


def learn_kmers(train: Part, validation: Part, test: Part) -> dict[str, Any]:
    """Logistic regression of how often each word of 1 to 6 bases occurs; decay by the validation examples."""
    return _learn_regression(lambda letters: np.stack([_words(one) for one in letters]), (train, validation, test))


def learn_places(train: Part, validation: Part, test: Part) -> dict[str, Any]:
    """Logistic regression of which base stands at each place, of the 800 in the middle; decay as for words."""
    return _learn_regression(_middle, (train, validation, test))


def _learn_regression(
    features: Callable[[Sequence[str]], np.ndarray], parts: tuple[Part, Part, Part]
) -> dict[str, Any]:
    """`features` of letters are float32 [sequences, features]."""
    began = time.process_time()
    train, validation, test = parts
    counts = [torch.from_numpy(features(letters)) for letters, _ in parts]
    mean, spread = counts[0].mean(0), counts[0].std(0) + 1e-6
    inputs = [(one - mean) / spread for one in counts]
    labels = torch.from_numpy(train[1]).float()
    best, said = -1.0, np.zeros(0)
    for decay in (1e-4, 1e-3, 1e-2, 1e-1):
        weights = torch.zeros(inputs[0].shape[1] + 1, requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

        def loss(weights: torch.Tensor = weights, decay: float = decay) -> torch.Tensor:
            logits = inputs[0] @ weights[1:] + weights[0]
            return nn.functional.binary_cross_entropy_with_logits(logits, labels) + decay * (weights**2).sum()

        def closure(optimizer: Any = optimizer, loss: Any = loss) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        optimizer.step(closure)
        with torch.no_grad():
            found = [(one @ weights[1:] + weights[0]).sigmoid().numpy() for one in inputs[1:]]
        if (score := _scored(found[0], validation[1])["f1"]) > best:
            best, said = score, found[1]
    return {
        "scores": _scored(said, test[1]),
        "examples": len(test[0]),
        "training_seconds": time.process_time() - began,
        "parameters": inputs[0].shape[1] + 1,
    }


def _batches(count: int, seed: int) -> Iterator[torch.Tensor]:
    random = np.random.Generator(np.random.Philox(seed))
    while True:
        order = random.permutation(count)
        for at in range(0, count - BATCH + 1, BATCH):
            yield torch.from_numpy(order[at : at + BATCH])


def _numbers(letters: Sequence[str]) -> torch.Tensor:
    table = np.full(256, 4, dtype=np.int64)
    table[np.frombuffer(b"ACGT", dtype=np.uint8)] = range(4)
    return torch.from_numpy(np.stack([table[np.frombuffer(one.encode(), dtype=np.uint8)] for one in letters]))


def _words(letters: str) -> np.ndarray:
    """How often each word of 1 to 6 bases occurs, as a share of the places: float32 [5460]."""
    numbers = _numbers([letters])[0].numpy()
    parts = []
    for size in range(1, LONGEST_WORD + 1):
        places = np.stack([numbers[at : len(numbers) - size + 1 + at] for at in range(size)])
        codes = (places * 4 ** np.arange(size)[:, None]).sum(0)[(places < 4).all(0)]
        parts.append(np.bincount(codes, minlength=4**size) / max(1, len(codes)))
    return np.concatenate(parts).astype(np.float32)


def _middle(letters: Sequence[str]) -> np.ndarray:
    """Four numbers for each of the `MIDDLE` places in the middle, 1 for the base that stands there: float32."""
    first = max(0, (len(letters[0]) - MIDDLE) // 2)
    numbers = _numbers([one[first : first + MIDDLE] for one in letters]).numpy()
    return np.eye(5, dtype=np.float32)[numbers][..., :4].reshape(len(letters), -1)


@torch.no_grad()
def _said(net: nn.Module, inputs: torch.Tensor) -> np.ndarray:
    net.eval()
    said = torch.cat([net(part) for part in inputs.split(64)]).sigmoid().numpy()
    net.train()
    return said


def _scored(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """As the task scores."""
    return PromoterAnswers(columns=(COLUMN,)).score(probabilities.tolist(), ["yes" if one else "no" for one in labels])
