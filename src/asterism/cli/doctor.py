"""asterism doctor: check this installation, and explain how to get anything that is missing.

First comes anything that Asterism needs and that is missing. Then come versions, the CPU kernel (which is built if need
be), processor, cache folder, the prices by which attention is chosen on this machine, GPU, and extras. The exit code is
1 if something that Asterism needs is missing. Extras, a GPU and measured prices are optional.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from asterism.cli.help import listed
from asterism.cli.installed import Requirement, required
from asterism.cli.parser import Parser, print_json
from asterism.cli.waiting import waiting
from asterism.errors import AsterismError, KernelError
from asterism.memory import amount


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report: `remedy` is the way to get what is missing or could be better."""

    name: str
    state: str
    value: str
    remedy: str = ""


_OF_DEVELOPERS = ("dev", "docs", "browser")
"""Extras that only work on Asterism itself needs."""

OK, OPTIONAL, MISSING = "ok", "optional", "missing"
"""The states of findings: there, absent but not needed, absent and needed."""


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    with waiting("loading PyTorch"):
        found = [*versions()]
    with waiting("looking at the kernel, building it if need be"):
        found += [*_torch_findings()] if _has_torch(found) else []
    found = by_importance([*found, *extras()])
    missing = [one.name for one in found if one.state == MISSING]
    if arguments.json:
        print_json({"ok": not missing, "findings": [asdict(one) for one in found]})
    else:
        print(_table(found))
    if missing:
        raise AsterismError(
            "installation-incomplete", f"missing: {', '.join(missing)}; the report above tells how to get it"
        )


def by_importance(found: Sequence[Finding]) -> list[Finding]:
    """What is missing, what is there, and what is optional and absent, each in the order given."""
    return sorted(found, key=lambda one: (MISSING, OK, OPTIONAL).index(one.state))


def _table(found: Sequence[Finding]) -> str:
    """A section for each state that occurs."""
    titles = {MISSING: "missing, and needed:", OK: "there:", OPTIONAL: "optional, and not there:"}
    sections = []
    for state, title in titles.items():
        rows = [
            (one.name, f"{one.value}: {one.remedy}" if one.remedy else one.value) for one in found if one.state == state
        ]
        sections += [f"{title}\n{listed(rows, 18)}"] if rows else []
    return "\n".join(sections)


def _has_torch(found: Sequence[Finding]) -> bool:
    return not any(one.name in ("torch", "numpy") and one.state == MISSING for one in found)


# --- packages --------------------------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """Asterism, Python, and each package that Asterism cannot do without."""
    from asterism import __version__

    yield Finding(name="asterism", state=OK, value=f"{__version__}, in {Path(__file__).parents[1]}")
    yield Finding(name="python", state=OK, value=f"{platform.python_version()}, {platform.platform()}")
    for one in required().get("", []):
        yield _finding(one)


def _finding(one: Requirement) -> Finding:
    state = OK if one.is_met else MISSING
    value = str(one).removeprefix(f"{one.name} ")
    remedy = "" if one.is_met else f"pip install '{one.name}{one.constraint}'"
    return Finding(name=one.name, state=state, value=value, remedy=remedy)


def extras() -> Iterator[Finding]:
    """Each extra, and which of its packages are not there; first the one that training needs."""
    for extra, needs in sorted(required().items(), key=lambda one: (one[0] != "train", one[0])):
        if extra in ("", *_OF_DEVELOPERS):
            continue
        absent = [f"{one.name}{one.constraint}" for one in needs if not one.is_met]
        told = ", ".join(str(one) for one in needs if one.is_met)
        if absent:
            told = f"lacks {', '.join(absent)}"
        yield Finding(
            name=f"[{extra}]",
            state=OPTIONAL if absent else OK,
            value=told,
            remedy=f"pip install '.[{extra}]' in a checkout" if absent else "",
        )


# --- what needs torch ------------------------------------------------------------------------------------------------


def _torch_findings() -> Iterator[Finding]:
    import torch

    yield kernel()
    yield Finding(name="processor", state=OK, value=_processor())
    yield Finding(name="threads", state=OK, value=f"{torch.get_num_threads()}, of {os.cpu_count()} processors")
    yield cache_folder()
    yield prices()
    yield gpu()


def _processor() -> str:
    from asterism.kernels.cpu.processor import processor, processor_class

    known = processor()
    return f"{known.get('model name') or platform.processor() or platform.machine()}, class {processor_class()}"


def kernel() -> Finding:
    """The CPU kernel, built now if it is not there."""
    from asterism.kernels.cpu import build

    try:
        origin, instructions, seconds = build.origin(), build.instruction_set(), build.seconds_of_build()
    except KernelError as error:
        return Finding(name="kernel", state=MISSING, value="attention takes the slower 'eager'", remedy=str(error))
    taken = f" in {seconds:.0f} s" if seconds is not None else ""
    came = "from the wheel" if origin == "wheel" else f"built on this machine{taken}"
    return Finding(name="kernel", state=OK, value=f"{came}, instructions {instructions}")


def gpu() -> Finding:
    """GPUs of CUDA, and Triton, by which they are used."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "PyTorch finds none" if built else "this PyTorch is built for CPUs only"
        return Finding(name="gpu", state=OPTIONAL, value=f"none: {why}")
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    triton = Requirement.of("triton")
    if triton.found is None:
        return Finding(name="gpu", state=MISSING, value=", ".join(names), remedy="pip install triton")
    return Finding(name="gpu", state=OK, value=f"{', '.join(names)}, triton {triton.found}")


def cache_folder() -> Finding:
    """Where kernels, prices and genomes are stored, and how much that is."""
    from asterism.kernels.cpu import cache

    reasons = []
    for place in cache.places():
        try:
            folder = cache.made(place)
        except OSError as error:
            reasons.append(str(error))
            continue
        if not os.access(folder, os.W_OK):
            reasons.append(f"{folder} cannot be written")
            continue
        files = [file.lstat().st_size for file in folder.rglob("*") if file.is_file()]
        return Finding(name="cache", state=OK, value=f"{folder}, {amount(sum(files), 'B')} in {len(files):,} files")
    return Finding(
        name="cache",
        state=MISSING,
        value="; ".join(reasons) or "none",
        remedy="set ASTERISM_CACHE to a folder of your own that can be written and may hold programs",
    )


def prices() -> Finding:
    """The times by which implementation="auto" chooses on this machine."""
    import torch

    from asterism.compiler.cost import Processor, has_figures
    from asterism.kernels.choice.figures import file_name, stored
    from asterism.kernels.cpu.processor import price_class

    threads = torch.get_num_threads()
    figures, damage = stored(threads)
    if damage:
        return Finding(name="prices", state=OPTIONAL, value=damage, remedy="asterism bench --calibrate")
    if figures.nanoseconds:
        measured = ", ".join(sorted(figures.nanoseconds))
        return Finding(name="prices", state=OK, value=f"measured here for {measured} ({file_name(threads)})")
    if has_figures(Processor(price_class(), threads)):
        return Finding(name="prices", state=OK, value="shipped for this class of processor")
    return Finding(
        name="prices",
        state=OPTIONAL,
        value="none for this machine yet: the first long call measures",
        remedy="asterism bench --calibrate",
    )


def _parser() -> Parser:
    return Parser("doctor", __doc__ or "", "asterism doctor")
