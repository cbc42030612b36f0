"""What Linux says of this machine's processor."""

import itertools


def processor() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo; empty elsewhere."""
    try:
        with open("/proc/cpuinfo") as lines:
            pairs = [line.partition(":") for line in itertools.takewhile(str.strip, lines)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def features() -> set[str]:
    """What its instruction set has, as far as the system lets programs use it."""
    known = processor()
    return set((known.get("flags") or known.get("Features") or "").split())
