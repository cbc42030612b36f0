"""The ways to bring queries and keys together, one per file: what each offers for a pattern, moves and holds.

The file of the same name in `asterism.parallel.ways` executes it.
"""

from asterism.compiler.devices.communication import Way
from asterism.compiler.devices.ways.heads import ByHeads
from asterism.compiler.devices.ways.residues import ByResidues
from asterism.compiler.devices.ways.ring import Ring
from asterism.compiler.devices.ways.rows import ByRows

WAYS: tuple[type[Way], ...] = (Ring, ByHeads, ByRows, ByResidues)
"""In the order in which they are weighed: first those that ignore the pattern, the one that needs least memory before
the others; then those that use it, the simplest first."""
