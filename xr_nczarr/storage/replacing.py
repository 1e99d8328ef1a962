"""Files and directories that are replaced in one step."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress

from xr_nczarr.errors import ExistsError
from xr_nczarr.storage import system
from xr_nczarr.storage.keys import is_desktop_file
from xr_nczarr.storage.system import Sync, syncs_each


def hidden_path(path: str, ending: str, *, unique: bool = True) -> str:
    """Return a path beside `path` that no store lists, and that is short enough for any disk."""
    folder, name = os.path.split(path)
    token = f".{secrets.token_hex(4)}" if unique else ""
    return os.path.join(folder, f".{name[:48]}{token}.{ending}")


def is_hidden(name: str) -> bool:
    """Return whether a file is one that writing leaves beside the objects for a while."""
    return name.startswith(".") and name.endswith((".tmp", ".lock", ".staging"))


def write_file(path: str, data: bytes | bytearray | memoryview, *, sync: Sync) -> None:
    """Write a file so that no reader sees half of it; create folders as needed.

    With ``"all"`` it is on the disk before it gets its name, and its name as well. With
    ``"commit"`` the disk begins to write a large one, so that the flush finds less to do.
    """
    view = memoryview(data).cast("B")
    _make_file(path, len(view), lambda descriptor: system.write(descriptor, view), sync)


def copy_file(source: int, size: int, path: str, *, sync: Sync) -> int:
    """Write a file as `write_file` does, of bytes of an opened one from where it is read next.

    Returns how many of the `size` bytes there were; if they are fewer, no file is written.
    """
    return _make_file(path, size, lambda descriptor: system.copy(source, descriptor, size), sync)


def _make_file(path: str, size: int, fill: Callable[[int], int], sync: Sync) -> int:
    """Create a file that `fill` writes, if it returns `size`; return its result."""
    temporary, sync_now = hidden_path(path, "tmp"), syncs_each(sync)
    try:
        descriptor = system.open_to_create(temporary)
    except FileNotFoundError:
        _make_folders(os.path.dirname(path), sync=sync_now)
        descriptor = system.open_to_create(temporary)
    try:
        try:
            done = fill(descriptor)
            if sync_now:
                os.fsync(descriptor)
            elif sync == "commit":
                system.start_sync(descriptor, size)
        finally:
            os.close(descriptor)
        if done < size:
            os.unlink(temporary)
            return done
        system.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync_now:
        system.sync_directory(os.path.dirname(path))
    return done


def _make_folders(path: str, *, sync: bool) -> None:
    """Create a folder and those above it; `sync` forces their names to the disk."""
    there = path
    while not os.path.isdir(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    os.makedirs(path, exist_ok=True)
    while sync and path != there:
        path = os.path.dirname(path)
        system.sync_directory(path)


def replace_directory(new: str, old: str, *, exclusive: bool = False) -> None:
    """Replace the directory `old` by `new`, and remove it last.

    Where the system can exchange two names, one of both always exists. Elsewhere a process that is
    killed in between leaves the old one under a hidden name.

    Raises
    ------
    OSError
        If `exclusive`, and `old` has other files than a file manager's, which `new` has too.
    """
    if exclusive or not os.path.lexists(old):
        for name in desktop_files(old):
            system.unlink(f"{old}/{name}")
        system.rename_onto_empty(new, old)
        return
    if os.path.isdir(old):
        shutil.copymode(old, new)
    away = new
    if not system.exchange(new, old):
        away = hidden_path(old, "staging")
        system.rename(old, away)
        try:
            system.rename(new, old)
        except OSError:
            system.rename(away, old)
            raise
    remove(away)


def desktop_files(folder: str) -> list[str]:
    """Return the names of the files that a file manager left in a directory, if it is one."""
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if is_desktop_file(entry.name) and entry.is_file()]


def made_meanwhile(name: str) -> ExistsError:
    """Return the error for a store that another writer created at the same time."""
    return ExistsError(
        "another writer created it at the same time",
        remedy="Look at it first. Pass mode='w' to replace it",
        store=name,
    )


def copy_tree(source: str, target: str, *, sync: bool) -> None:
    """Create a directory of the files of another one, without leftovers; see `link_or_copy`.

    `sync` forces all to the disk.
    """

    def copy(file: str, name: str) -> None:
        if not is_hidden(os.path.basename(file)):
            link_or_copy(file, name, sync=sync)

    shutil.copytree(source, target, copy_function=copy)
    if sync:
        for folder, _, _ in os.walk(target):
            system.sync_directory(folder)


def link_or_copy(file: str, name: str, *, sync: bool) -> None:
    """Link a file to another name; copy it where the file system has no hard links."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copy2(file, name)
        if sync:
            system.sync_file(name)


def remove(path: str) -> None:
    """Remove a file, a link or a whole directory."""
    if os.path.isdir(path) and not os.path.islink(path):
        system.remove_tree(path)
    else:
        system.unlink(path)
