"""Communication between devices that share a sequence: shards, the rows that each device needs, and their bytes.

Nothing here needs a device: a communication plan is as much data as a plan of tiles, and `asterism.parallel` executes
it.
"""

from asterism.compiler.devices.communicate import communicate
from asterism.compiler.devices.communication import Communication, Way
from asterism.compiler.devices.describe import describe, refusal, summary, without_pattern
from asterism.compiler.devices.needs import needed_keys
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Traffic, Transfers
from asterism.compiler.devices.ways.heads import ByHeads
from asterism.compiler.devices.ways.residues import ByResidues
from asterism.compiler.devices.ways.ring import Ring
from asterism.compiler.devices.ways.rows import ByRows

__all__ = [
    "Communication",
    "ByHeads",
    "ByResidues",
    "Ring",
    "RowShape",
    "ByRows",
    "Shards",
    "Traffic",
    "Transfers",
    "Way",
    "communicate",
    "describe",
    "needed_keys",
    "refusal",
    "summary",
    "without_pattern",
]
