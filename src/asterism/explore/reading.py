"""What a model reads in one text: pictures of its attention, the keys that are read most, and a line for each head.

Everything is read from the masses per block, which are recorded once for a text. A page of 65,536 tokens has at most
`_MOST_VALUES` of them, so its blocks are as small as the number of layers and heads leaves room for.
"""

from base64 import b64encode
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asterism.errors import ConfigurationError
from asterism.explore.model import ReadingModel, TokenizedText
from asterism.explore.picture import Levels, borders, draw_between
from asterism.models.mass import LayerMass, MassRecord, record_mass
from asterism.patterns.intervals import Integers

Values = NDArray[np.float64]

_MOST_VALUES = 2**24
"""Masses of all layers and heads together, 4 bytes each."""

_DECADES = 2
"""Powers of ten between the darkest shade and the lightest."""

_DARKEST = 0.995
"""The quantile of the cells read that gets the darkest shade: the first queries of a text read little, and so much of
it that nothing else would be dark."""

_READ_MOST = 8
"""Blocks of keys that are listed."""

_SHOWN = 240
"""Characters of the text of a block."""


class Reading:
    """A text that was read."""

    def __init__(self, model: ReadingModel, encoded: TokenizedText) -> None:
        self.encoded = encoded
        self.tokens = len(encoded.ids)
        config = model.backbone.config
        count = config.num_hidden_layers * config.num_attention_heads
        self.block = block_for(self.tokens, count)
        self.record = _record(model, encoded.ids, self.block)
        for number, layer in enumerate(self.record.layers):
            if layer is not None and not layer.mass.values.isfinite().all():
                raise ConfigurationError(
                    "attention-not-finite", f"the attention of layer {number} is not finite: its weights may be damaged"
                )
        first = next(layer for layer in self.record.layers if layer is not None)
        self.length = first.mass.n_queries
        self.front = self.length - self.tokens
        """Tokens of the model before those of the text."""

    def layers(self) -> list[dict[str, Any]]:
        """For each layer its pattern and a line per head, or why it has none."""
        told: list[dict[str, Any]] = []
        for number, layer in enumerate(self.record.layers):
            if layer is None:
                told.append({"note": self.record.without[number], "heads": []})
            else:
                told.append(
                    {"text": str(layer.pattern), "parts": [str(one) for one in layer.parts], "heads": _heads(layer)}
                )
        return told

    def layer(self, number: int) -> LayerMass:
        """A layer that has attention. Raises ConfigurationError for another."""
        if number >= len(self.record.layers):
            raise ConfigurationError("no-such-layer", f"the model has {len(self.record.layers)} layers, from 0")
        layer = self.record.layers[number]
        if layer is None:
            raise ConfigurationError("layer-without-attention", self.record.without[number])
        return layer

    def picture(
        self, number: int, head: int | None, rows: tuple[int, int], columns: tuple[int, int], cells: int
    ) -> dict[str, Any]:
        """The part rows x columns of a layer's attention, in at most cells x cells cells, for a head or the mean.

        `rows` and `columns` are the borders of the cells in tokens. `levels` is uint8 in base64, row by row: 0 where
        the pattern has no pair, else 1 to 255, rising with the logarithm of the share, and 255 from `darkest` on.
        `shares` is float32 in base64: the share of the attention of the cell's queries that goes to its keys.
        """
        layer = self.layer(number)
        row, column = self._borders(rows, cells), self._borders(columns, cells)
        values = _of_head(layer, head)
        i, j = _cells(layer.mass.queries, row, self.block), _cells(layer.mass.keys, column, self.block)
        inside = (i >= 0) & (j >= 0)
        shape = len(row) - 1, len(column) - 1
        place = i[inside] * shape[1] + j[inside]
        sums = np.bincount(place, values[inside], shape[0] * shape[1]).reshape(shape)
        shares = sums / np.diff(row)[:, None]
        allowed = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape) > 0
        if layer.pattern.heads > 1 and head is not None:
            drawn, _ = draw_between(layer.pattern, self.length, head, row, column)
            allowed &= drawn > 0
        read = shares[shares > 0]
        darkest = float(np.quantile(read, _DARKEST, method="lower")) if len(read) else 0.0
        return {
            "rows": row.tolist(),
            "columns": column.tolist(),
            "levels": b64encode(_levels(shares, allowed, darkest).tobytes()).decode(),
            "shares": b64encode(shares.astype("<f4").tobytes()).decode(),
            "darkest": darkest,
        }

    def keys(self, number: int, head: int | None, query: int) -> dict[str, Any]:
        """The blocks that the block of a query reads most, with their text."""
        layer, block = self.layer(number), query // self.block
        mine = (layer.mass.queries == block).numpy()
        values, keys = _of_head(layer, head)[mine], layer.mass.keys.numpy()[mine]
        queries = min(self.block, self.length - block * self.block)
        most = np.argsort(-values, kind="stable")[:_READ_MOST]
        return {
            "query": self._block(block),
            "keys": [
                self._block(int(keys[one])) | {"share": float(values[one] / queries)} for one in most if values[one] > 0
            ],
            "blocks": int((values > 0).sum()),
        }

    def _borders(self, tokens: tuple[int, int], cells: int) -> Integers:
        first, past = tokens[0] // self.block, -(-tokens[1] // self.block)
        return np.minimum(borders((first, past), cells) * self.block, self.length)

    def _block(self, number: int) -> dict[str, Any]:
        """Positions of a block's first and last token, and its text."""
        first, past = number * self.block, min((number + 1) * self.block, self.length)
        start = max(first - self.front, 0)
        text = self.encoded.shown(start, past - self.front) if past > self.front else ""
        own = f"{min(past, self.front) - first} global tokens of the model" if first < self.front else ""
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"
        return {"first": first, "last": past - 1, "text": shown, "own": own}


def block_for(tokens: int, count: int) -> int:
    """The smallest power of two for which so many layers and heads have no more masses than are kept."""
    block = 1
    while count * (-(-tokens // block)) ** 2 > _MOST_VALUES:
        block *= 2
    return block


def _record(model: ReadingModel, ids: list[int], block: int) -> MassRecord:
    rows = torch.tensor([ids], device=model.backbone.device)
    with torch.inference_mode(), model.computing(), record_mass(model.backbone, block) as record:
        model.backbone(rows)
    return record


def _of_head(layer: LayerMass, head: int | None) -> Values:
    """The masses [m] of a head, or the mean of all heads."""
    values = layer.mass.values[0]
    if head is None:
        return values.mean(dim=0).double().cpu().numpy()
    if head >= len(values):
        raise ConfigurationError("no-such-head", f"the layer has {len(values)} heads, from 0")
    return values[head].double().cpu().numpy()


def _cells(blocks: torch.Tensor, border: Integers, block: int) -> Integers:
    """In which cell each block lies; -1 for none."""
    starts = blocks.cpu().numpy() * block
    cell = np.searchsorted(border, starts, side="right") - 1
    return np.where((starts >= border[0]) & (starts < border[-1]), cell, -1)


def _levels(shares: Values, allowed: NDArray[np.bool_], darkest: float) -> Levels:
    with np.errstate(divide="ignore"):
        along = 1 + np.log10(shares / (darkest or 1.0)) / _DECADES
    # The page's colours rise with the root of the level, for shares of pairs.
    levels = np.rint(1 + 254 * np.clip(along, 0, 1) ** 2)
    return np.where(allowed, levels, 0).astype(np.uint8)


def _heads(layer: LayerMass) -> list[dict[str, Any]]:
    """For each head the share of each part, the mean distance, over how many tokens it spreads, and what is left."""
    mass = layer.mass
    values, queries, keys = mass.values[0].double().cpu().numpy(), mass.queries.cpu().numpy(), mass.keys.cpu().numpy()
    between = np.abs(queries - keys) * mass.block
    told = []
    for head, own in enumerate(values):
        total = own.sum()
        row = np.bincount(queries, own, mass.grid[0])
        share = np.divide(own, row[queries], out=np.zeros_like(own), where=row[queries] > 0)
        bits = -np.bincount(queries, share * np.log(np.where(share > 0, share, 1)), mass.grid[0])
        read = row > 0
        told.append(
            {
                "shares": [float(part[0, head]) for part in layer.shares],
                "distance": float((own * between).sum() / total) if total else 0.0,
                "spread": float(np.exp(bits[read]).mean() * mass.block) if read.any() else 0.0,
                "left": float(max(0.0, 1 - total / mass.n_queries)),
            }
        )
    return told
