"""Time attention over a pattern on this machine: every implementation, dense attention, and the installed peers."""

from asterism.bench.calibration import choices_table, recalibrate
from asterism.bench.contenders import OURS
from asterism.bench.peers import PEERS
from asterism.bench.record import BenchSettings, measure
from asterism.bench.report import table

__all__ = ["OURS", "PEERS", "BenchSettings", "choices_table", "measure", "recalibrate", "table"]
