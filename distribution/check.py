"""Checks of what `make wheel` built, twice, from an sdist and from the checkout: python distribution/check.py DIST.

DIST holds an sdist and a wheel, and DIST/again the same. They must be equal, hold every source and the licence, and the
wheel must run where its name says, which auditwheel judges by what its libraries take from the system.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(folder: Path) -> None:
    """Raises SystemExit with one line for what is wrong."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    for file in (sdist, wheel):
        if file.read_bytes() != (folder / "again" / file.name).read_bytes():
            raise SystemExit(f"{file} differs when it is built again: what it is made of depends on time or place")
    sources = sources_of(ROOT / "src")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        require(sdist, {"LICENSE", "distribution/hook.py", *(f"src/{name}" for name in sources)} - names)
    with zipfile.ZipFile(wheel) as archive:
        require(wheel, sources - set(archive.namelist()))
        licence = next((name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")), None)
        if licence is None or archive.read(licence) != (ROOT / "LICENSE").read_bytes():
            raise SystemExit(f"{wheel} does not hold the licence")
        libraries = libraries_of(archive)
    judged = audited(wheel)
    print(f"{wheel}: {judged}, {', '.join(libraries)}; built twice with equal bytes")
    for file in (sdist, wheel):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")


def sources_of(folder: Path) -> set[str]:
    """All files of the package, as paths below the folder."""
    files = (file for file in (folder / "asterism").rglob("*") if file.is_file())
    return {str(file.relative_to(folder)) for file in files if "__pycache__" not in file.parts}


def require(file: Path, missing: set[str]) -> None:
    if missing:
        raise SystemExit(f"{file} lacks {', '.join(sorted(missing)[:5])}")


def libraries_of(archive: zipfile.ZipFile) -> list[str]:
    """The instruction sets that the wheel has libraries for; each must be what the list says."""
    folder = "asterism/kernels/cpu/libraries"
    listed = json.loads(archive.read(f"{folder}/libraries.json"))["libraries"]
    for name, digest in listed.items():
        library = archive.read(f"{folder}/{name}.so")
        if hashlib.sha256(library).hexdigest() != digest:
            raise SystemExit(f"{name}.so is not what libraries.json says")
    return list(listed)


def audited(wheel: Path) -> str:
    """The platform of the wheel's name, if auditwheel finds that its libraries run there and on no older one."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, named = json.loads(done.stdout)["overall_tag"], wheel.stem.rpartition("-")[2]
    if found != named:
        raise SystemExit(
            f"{wheel} is for {named}, and auditwheel finds {found}: `auditwheel show` says why, hook.py names it"
        )
    return named


if __name__ == "__main__":
    main(Path(sys.argv[1]))
