"""A convolutional classifier of raw samples: M5 of Dai et al. 2017 (arXiv 1610.00087), as wide as it is asked to be.

Five layers: a convolution of 80 samples with stride 4, three of 3 samples, each with batch normalisation, ReLU and
max-pooling by 4, the mean over time, and a linear layer. Clips are zero-padded behind their end to one length.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BATCH = 32


def m5(classes: int, width: int) -> nn.Sequential:
    """float32 [B, 1, samples] -> logits [B, classes]; `width` is the paper's 128 (and 64 in torchaudio's tutorial)."""
    layers: list[nn.Module] = []
    for inputs, outputs, size, stride in (
        (1, width, 80, 4),
        (width, width, 3, 1),
        (width, 2 * width, 3, 1),
        (2 * width, 4 * width, 3, 1),
    ):
        convolution = nn.Conv1d(inputs, outputs, size, stride=stride, padding=size // 2)
        layers += [convolution, nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def of_weights(classes: int, weights: int) -> nn.Sequential:
    """The widest of at most so many weights."""
    width = 1
    while sum(one.numel() for one in m5(classes, width + 1).parameters()) <= weights:
        width += 1
    return m5(classes, width)


def learn(model: nn.Module, clips: np.ndarray, labels: np.ndarray, *, steps: int, seed: int) -> float:
    """Train on clips, float32 [n, samples], by AdamW with a cosine of the learning rate; seconds of the processor."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.05)
    inputs, wanted, order = torch.from_numpy(clips)[:, None], torch.from_numpy(labels), np.zeros(0, dtype=np.int64)
    model.train()
    began = time.process_time()
    for step in range(steps):
        if len(order) < BATCH:
            random = np.random.Generator(np.random.Philox(key=[seed, step]))
            order = np.concatenate([order, random.permutation(len(clips))])
        chosen, order = order[:BATCH], order[BATCH:]
        loss = F.cross_entropy(model(inputs[chosen]), wanted[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return time.process_time() - began


@torch.no_grad()
def answers(model: nn.Module, clips: np.ndarray) -> np.ndarray:
    """The likeliest class of each clip: int64 [n]."""
    model.eval()
    parts = [model(part[:, None]).argmax(dim=1) for part in torch.from_numpy(clips).split(BATCH)]
    return torch.cat(parts).numpy()


def padded(clips: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Samples of clips, cut or zero-padded to one length: float32 [n, length]."""
    rows = np.zeros((len(clips), length), dtype=np.float32)
    for row, clip in zip(rows, clips, strict=True):
        row[: len(clip)] = clip[:length]
    return rows
