"""Which tokens the outputs of each layer read, measured by perturbing them, and by nothing else.

Every row of a batch is the same sequence. Before each layer, all rows are set to the first one; then one token of every
further row is replaced. After the layer, its outputs are compared with those of the first row and set to them again. So
one call measures every layer alone, whatever masks, caches and kernels it has: what moved, reads the token that was
replaced. A second call, without replacements, shows the noise of the computation: how much equal rows differ.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from asterism.randomness import isolated

_MOST_NOISE, _ROUNDING, _NOTHING = 1e-3, 1e-5, 1e-9
"""Of the outputs' root mean square: more than any rounding; more than that to float32; less than any token moves."""


class Undecided(Exception):
    """Raised where the outputs of a model cannot tell who reads whom; its text says why."""


class LayerReach(NamedTuple):
    """What each layer reads: how far outputs moved, as multiples of the root mean square of the layer's outputs.

    `sizes` is [layers, queries, keys], with a column for each perturbed token; `finite` is [layers, queries]; `seen` is
    the number of tokens that the layers were given; `noise` is [layers, queries], the largest difference between equal
    rows; `epsilon` is that of the outputs' dtype; `first_call` is how many tokens the first call had; `is_random` says
    whether the noise changes with the generators.
    """

    sizes: np.ndarray
    finite: np.ndarray
    seen: int
    noise: np.ndarray
    epsilon: float
    first_call: int
    is_random: bool

    def moved(self, layer: int, judged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Booleans [queries, keys] of a layer: what surely moved, and what surely did not.

        `judged` are the queries whose noise counts. LayerReach is more than 100 times the noise, and more than rounding
        to float32, which models in float64 do inside, too. What lies between is neither.
        """
        noise, sizes = float(self.noise[layer][judged].max(initial=0.0)), self.sizes[layer]
        return sizes > max(100 * noise, _ROUNDING), sizes <= max(4 * noise, 16 * self.epsilon, _NOTHING)

    def faint(self, layer: int, judged: np.ndarray) -> np.ndarray:
        """Booleans [queries, keys] of a layer: what moved less than surely, and more than rounding to float64."""
        noise, sizes = float(self.noise[layer][judged].max(initial=0.0)), self.sizes[layer]
        if self.epsilon > torch.finfo(torch.float64).eps:
            return np.zeros(sizes.shape, bool)
        return (sizes > max(100 * noise, _NOTHING)) & (sizes <= _ROUNDING)

    def unclear(self, layer: int, judged: np.ndarray) -> str:
        """Why the outputs of a layer cannot tell who reads whom; nothing where they can."""
        if not self.finite[layer][judged].all():
            return f"outputs of real tokens in layer {layer} are not finite"
        if (noise := self.noise[layer][judged].max(initial=0.0)) > _MOST_NOISE:
            reason = "it draws random numbers" if self.is_random else "rows are not treated alike"
            return f"equal rows differ by {min(noise, 1e9):.1g} of their size in layer {layer}: {reason}"
        return ""


class Probe:
    """Hooks on the layers of a model, for sequences of `tokens` tokens of which those at `keys` are perturbed."""

    def __init__(
        self, layers: Sequence[nn.Module], tokens: int, keys: Sequence[int], seed: int | None, others: int = 0
    ) -> None:
        """`seed`: of the perturbations, None for a call without them; `others`: first rows that are left alone."""
        self.layers, self.tokens, self.keys, self.seed, self.others = layers, tokens, list(keys), seed, others
        self.rows = others + 1 + len(self.keys)
        self.seen = [0] * len(layers)
        shape = (len(layers), tokens)
        self.sizes, self.scales = np.zeros((*shape, len(self.keys))), np.zeros(len(layers))
        self.finite = np.ones(shape, bool)
        self.epsilon, self.first_call = 0.0, 0

    @contextmanager
    def watching(self, drawing: int = 0) -> Iterator[None]:
        """Perturb and compare within the body; no hook stays, and no global generator moves.

        Layers draw from generators seeded with `drawing`.
        """
        handles = []
        for number, layer in enumerate(self.layers):
            handles += [
                layer.register_forward_pre_hook(self._before(number), with_kwargs=True),
                layer.register_forward_hook(self._after(number), with_kwargs=True),
            ]
        try:
            with isolated(drawing), torch.no_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def moved(self) -> tuple[np.ndarray, int]:
        """float64 [layers, queries, keys]: how far outputs moved, as multiples of their size; and how many tokens came.

        Raises Undecided where layers were not called, or not all alike.
        """
        if len(set(self.seen)) > 1:
            raise Undecided(f"layers were given different numbers of tokens: {self.seen}")
        if not self.seen[0]:
            raise Undecided("the layers were not called")
        scales = np.where(self.scales > 0, self.scales, 1.0)
        return self.sizes / scales[:, None, None], self.seen[0]

    def _before(self, number: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            name, hidden = _hidden(args, kwargs)
            axis = self._axis(hidden, number)
            changed = _as_before(self._perturb(self._by_rows(hidden, axis), number), hidden, axis)
            if isinstance(name, int):
                return (*args[:name], changed, *args[name + 1 :]), kwargs
            return args, {**kwargs, name: changed}

        return hook

    def _after(self, number: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            # Without gradients, which a path may have switched on, each layer's graph ends with it.
            hidden = (output if isinstance(output, torch.Tensor) else output[0]).detach()
            axis = self._axis(hidden, number)
            by_rows = self._by_rows(hidden, axis)
            self._compare(by_rows[self.others :], number)
            equal = _as_before(self._equal(by_rows), hidden, axis)
            self.first_call = self.first_call or by_rows.shape[1]
            self.seen[number] += by_rows.shape[1]
            return equal if isinstance(output, torch.Tensor) else (equal, *output[1:])

        return hook

    def _axis(self, hidden: torch.Tensor, number: int) -> int:
        """Where the rows lie, with the tokens after them; -1 for rows and tokens in one axis."""
        shape, left = hidden.shape, self.tokens - self.seen[number]
        if hidden.ndim == 2 and shape[0] % self.rows == 0 and shape[0] // self.rows <= left:
            return -1
        for axis in range(hidden.ndim - 2):
            if shape[axis] == self.rows and shape[axis + 1] <= left:
                return axis
        raise Undecided(
            f"layer {number} has hidden states of shape {list(shape)} for {self.rows} rows of at most {left} tokens"
        )

    def _by_rows(self, hidden: torch.Tensor, axis: int) -> torch.Tensor:
        """[rows, tokens of this call, features]: the order of `_axis`, with all other axes as features."""
        if axis < 0:
            return hidden.reshape(self.rows, -1, hidden.shape[-1])
        return hidden.movedim((axis, axis + 1), (0, 1)).flatten(2)

    def _equal(self, by_rows: torch.Tensor) -> torch.Tensor:
        """A copy in which all rows that are compared are the first of them."""
        changed = by_rows.clone()
        changed[self.others :] = by_rows[self.others]
        return changed

    def _perturb(self, by_rows: torch.Tensor, number: int) -> torch.Tensor:
        changed, start = self._equal(by_rows), self.seen[number]
        if self.seed is None:
            return changed
        # Of the size of what is there, so that a norm in front of attention sees another token.
        size = by_rows[self.others].float().square().mean().sqrt().clamp(min=1e-3).to(by_rows.dtype)
        for row, key in enumerate(self.keys, start=self.others + 1):
            if start <= key < start + by_rows.shape[1]:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + key)
                noise = torch.randn(by_rows.shape[2], generator=generator, dtype=torch.float64)
                changed[row, key - start] += noise.to(by_rows) * size
        return changed

    def _compare(self, outputs: torch.Tensor, number: int) -> None:
        first, there = outputs[:1], slice(self.seen[number], self.seen[number] + outputs.shape[1])
        difference = (outputs - first).abs().amax(dim=2).double()
        difference = torch.where(difference.isnan(), torch.inf, difference).cpu().numpy()
        self.sizes[number, there] = difference[1:].T
        finite = first.isfinite().all(dim=2)[0]
        self.finite[number, there] = finite.cpu().numpy()
        if finite.any():
            size = float(first[0, finite].double().square().mean().sqrt())
            self.scales[number] = max(self.scales[number], size)
        self.epsilon = torch.finfo(outputs.dtype).eps


def measure(
    layers: Sequence[nn.Module],
    tokens: int,
    keys: Sequence[int],
    run: Callable[[int], None],
    seed: int,
    others: int = 0,
) -> LayerReach:
    """What each layer reads in rows of `tokens` tokens when `run` calls the model with a number of rows.

    All are equal, but the first `others`, which are left alone.
    """

    def called(seed: int | None, drawing: int = 0) -> Probe:
        probe = Probe(layers, tokens, keys, seed, others)
        with probe.watching(drawing):
            run(probe.rows)
        return probe

    (sizes, seen), without = called(seed).moved(), called(None)
    noise, _ = without.moved()
    noisy = bool((noise > _MOST_NOISE).any())
    is_random = noisy and not np.array_equal(noise, called(None, drawing=1).moved()[0])
    return LayerReach(sizes, without.finite, seen, noise.max(axis=2), without.epsilon, without.first_call, is_random)


def _as_before(by_rows: torch.Tensor, hidden: torch.Tensor, axis: int) -> torch.Tensor:
    """Hidden states by rows in the order of others."""
    if axis < 0:
        return by_rows.reshape(hidden.shape)
    moved = by_rows.reshape(hidden.movedim((axis, axis + 1), (0, 1)).shape)
    return moved.movedim((0, 1), (axis, axis + 1)).contiguous()


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, torch.Tensor]:
    """The hidden states among the arguments of a layer, and where they are."""
    named = [("hidden_states", kwargs["hidden_states"])] if "hidden_states" in kwargs else []
    for name, value in (*named, *enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return name, value
    raise Undecided("a layer was given no hidden states")
