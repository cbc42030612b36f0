"""How fast attention over a pattern is here: every implementation beside dense attention and the peers installed."""

from asterism.bench.calibration import choices_table, recalibrate
from asterism.bench.contenders import OURS
from asterism.bench.peers import PEERS
from asterism.bench.record import BenchSettings, measure
from asterism.bench.report import table

__all__ = ["OURS", "PEERS", "BenchSettings", "choices_table", "measure", "recalibrate", "table"]
