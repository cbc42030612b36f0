"""The cache of built libraries: a folder that only the user can change, because loaded libraries run as the user.

The rule is that of OpenSSH for its keys: the folder and every folder above it belong to the user or to root, and nobody
else may write there; of a folder above, others may write to it if they can only remove what is their own (/tmp).
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def places() -> Iterator[Path]:
    """Folders that may keep libraries, best first.

    $ASTERISM_CACHE and no other if it is set; else the user's cache ($XDG_CACHE_HOME or ~/.cache), and the temporary
    folder for users without a home, or with one that cannot be written or lets no program run. None on Windows, where
    files do not say who else may write them.
    """
    if not hasattr(os, "geteuid"):
        return
    if chosen := os.environ.get("ASTERISM_CACHE"):
        yield Path(chosen).absolute()
        return
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(user_cache):  # "~" stays for a user without a home
        yield Path(user_cache, "asterism")
    with suppress(FileNotFoundError):
        yield Path(tempfile.gettempdir(), f"asterism-{os.geteuid()}")


def made(place: Path) -> Path:
    """The folder without symbolic links, made if need be. Raises OSError with the reason if it is not fit for use.

    Whoever uses the path that is returned, and not the one given, need not fear links that change in the meantime.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(os.path.realpath(place))
    require_private(folder)
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise OSError(f"{folder} lies on a file system that lets no program run (noexec)")
    return folder


def require_private(path: Path) -> None:
    """Raises OSError if somebody else can change the file or folder; the path must be free of symbolic links."""
    # Who owns the root of all folders can change everything anyway. In a container that need not be user 0.
    trusted = {0, os.geteuid(), os.stat("/").st_uid}
    for part in (path, *path.parents):
        seen = part.lstat()
        if seen.st_uid not in trusted:
            raise OSError(f"{part} belongs to another user ({seen.st_uid}), who could change what is run")
        writers = seen.st_mode & (stat.S_IWOTH if _is_own_group(seen.st_gid) else stat.S_IWOTH | stat.S_IWGRP)
        keeps_owners_apart = part != path and seen.st_mode & stat.S_ISVTX
        if writers and not keeps_owners_apart:
            mode = stat.S_IMODE(seen.st_mode)
            raise OSError(f"{part} can be written by other users (mode {mode:o}), who could change what is run")


def _is_own_group(number: int) -> bool:
    """Whether it is the user's private group, to which distributions with umask 002 let every new folder be open."""
    import grp  # here, because Windows has neither
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return (group.gr_name, number) == (user.pw_name, user.pw_gid) and set(group.gr_mem) <= {user.pw_name}
