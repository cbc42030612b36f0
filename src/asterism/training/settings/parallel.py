"""The mesh of a run's processes, as the setting `parallel` describes it. Needs no torch."""

from dataclasses import dataclass
from math import prod

from asterism.errors import ConfigurationError

AXES = ("dp", "fsdp", "cp")
"""The axes of the mesh, the slowest first: consecutive processes, which share a machine, share a sequence."""

MEANING = """how launched processes share the work, such as "dp=2,fsdp=2,cp=2": dp processes read different rows, fsdp
processes also shard weights and moments, cp processes share the tokens of a row (default: all are dp)"""


@dataclass(frozen=True)
class MeshShape:
    """The sizes of the axes: dp x fsdp processes divide the rows of a batch, and cp processes the tokens of a row."""

    dp: int = 1
    fsdp: int = 1
    cp: int = 1

    @property
    def processes(self) -> int:
        """All of them."""
        return self.dp * self.fsdp * self.cp

    def __str__(self) -> str:
        """As `parallel` says it."""
        return ",".join(f"{axis}={size}" for axis in AXES if (size := getattr(self, axis)) > 1) or "dp=1"

    @property
    def row_parts(self) -> int:
        """The number of parts into which the rows of a batch are divided."""
        return self.dp * self.fsdp


def mesh_sizes(text: str) -> dict[str, int]:
    """The axes that a text such as "dp=2,cp=4" names, and their sizes. Raises ConfigurationError."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, size = (word.strip() for word in part.partition("="))
        if name not in AXES or not (size.isascii() and size.isdecimal() and 1 <= int(size) <= 2**20):
            raise ConfigurationError(
                "mesh-text", f"parallel: {part!r} is not one of {', '.join(f'{axis}=N' for axis in AXES)}"
            )
        if name in found:
            raise ConfigurationError("mesh-axis-twice", f"parallel: {name} is given twice in {text!r}")
        found[name] = int(size)
    return found


def mesh_shape(text: str, processes: int) -> MeshShape:
    """The mesh for this number of processes; "" gives all of them to dp.

    Raises ConfigurationError for a mesh of another number of processes.
    """
    sizes = mesh_sizes(text) or {"dp": processes}
    if (needed := prod(sizes.values())) != processes:
        there = "this is one alone" if processes == 1 else f"there are {processes}"
        raise ConfigurationError(
            "mesh-processes",
            f"parallel: a mesh {text} has {needed} processes, {there}: start {needed} with"
            f" `torchrun --nproc-per-node {needed}`, or say a mesh of {processes}, such as"
            f" --parallel {_resized(sizes, processes)}",
        )
    return MeshShape(**sizes)


def _resized(sizes: dict[str, int], processes: int) -> str:
    """A mesh for this number of processes: with the same single axis, or else with the same sizes except dp, if
    possible.
    """
    if len(sizes) == 1:
        return f"{min(sizes)}={processes}"
    others = {name: size for name, size in sizes.items() if name != "dp"}
    copies, rest = divmod(processes, prod(others.values()))
    return str(MeshShape(dp=processes) if rest else MeshShape(dp=copies, **others))
