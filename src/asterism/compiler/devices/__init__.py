"""What moves between devices that share a sequence: shards, who needs whose rows, and how many bytes that takes.

Nothing here needs a device: a communication plan is as much data as a plan of tiles, and `asterism.parallel` executes
it.
"""

from asterism.compiler.devices.communicate import communicate
from asterism.compiler.devices.communication import ByHeads, ByResidues, ByRows, Communication, Ring, Share, gathered
from asterism.compiler.devices.describe import describe, refusal, summary, without_pattern
from asterism.compiler.devices.needs import needed_keys
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Traffic, Transfers

__all__ = [
    "Communication",
    "ByHeads",
    "ByResidues",
    "Ring",
    "RowShape",
    "ByRows",
    "Shards",
    "Share",
    "Traffic",
    "Transfers",
    "communicate",
    "describe",
    "gathered",
    "needed_keys",
    "refusal",
    "summary",
    "without_pattern",
]
