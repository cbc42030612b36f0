"""What a plan costs, in one unit: the time that dense attention takes for one pair of tokens and one head.

The figures choose the tile size, the layouts, and whether dense attention is the faster way to the same numbers. Those
of "cpu" are rounded from measurements (docs/lab-notes.md, "Cost model"); those of "triton" and "eager" are guesses.
"""

TILE_SIZES = (32, 64, 128)
"""Tile sizes that the compiler chooses from."""

PAIR_COST = {
    "cpu": {16: 2.0, 32: 1.35, 64: 1.0, 128: 0.95},
    "triton": {16: 1.3, 32: 1.1, 64: 1.0, 128: 0.95},
    "eager": {16: 4.0, 32: 2.5, 64: 1.6, 128: 1.3},
}
"""Cost of one computed pair, by implementation and tile size: small tiles waste vector lanes and pay more overhead."""

PASS_COST = 0.5
"""Cost of merging a further pass into the output, in tiles per tile row."""

LAUNCH_COST = {"cpu": 0.0, "triton": 0.0, "eager": 200_000.0}
"""Fixed cost of running a pass of one head at all, in pairs, by implementation."""

DENSE_MASK_LIMIT = 2**22
"""Largest n_queries * n_keys for which dense attention with a mask may stand in for a plan."""


def tile_cost(tiles: float, rows: int, passes: int, tile: int) -> float:
    """Cost of `passes` passes that keep `tiles` tiles in all and have `rows` tile rows each."""
    return (tiles + PASS_COST * rows * max(passes - 1, 0)) * tile**2 * PAIR_COST["cpu"][tile]


def plan_cost(implementation: str, tiles: int, tile: int, passes: int, heads: int) -> float:
    """Cost of running a plan over its heads."""
    return tiles * tile**2 * PAIR_COST[implementation][tile] + LAUNCH_COST[implementation] * passes * heads


def dense_cost(n_queries: int, n_keys: int, heads: int, causal: bool) -> float:
    """Cost of dense attention over `heads` heads; plain causal attention skips the upper triangle."""
    pairs = n_queries * n_keys * heads
    return 0.65 * pairs if causal else float(pairs)
