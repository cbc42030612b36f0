"""The ways to bring queries and keys together, executed: each in a file, named as in `asterism.compiler.devices.ways`.

Every way gives the results of this rank's queries, and autograd makes the way back of it. All ranks make the same
exchanges in the same order, whether they have something to send or not; what is computed meanwhile is each rank's own
affair.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from asterism.compiler.devices import Way
from asterism.compiler.devices.ways import WAYS
from asterism.kernels.merging import Result, merged
from asterism.parallel.compute import Call

_RUN: dict[type[Way], Callable[[Call, Any], Result]] = {
    way: import_module(f"{__name__}.{way.__module__.rpartition('.')[2]}").run for way in WAYS
}


def results_of(call: Call) -> Result:
    """The results of this rank's queries, by all ways of the plan, one after another."""
    return merged([run(call, way) for way in call.plan.ways])


def run(call: Call, way: Way) -> Result:
    """The results of one way: over the pairs of its part of the rule."""
    return _RUN[type(way)](call, way)
