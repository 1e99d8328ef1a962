"""Replace files and directories atomically."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress

from xr_nczarr.errors import ExistsError, RefusedError
from xr_nczarr.storage import system
from xr_nczarr.storage.keys import is_file_manager_file
from xr_nczarr.storage.system import Sync, syncs_each

_REMOVAL_WAITS = (0, 0.02, 0.2, 1)  # seconds before each attempt


def hidden_path(path: str, extension: str, *, unique: bool = True) -> str:
    """Return a path for a temporary file or directory in the same directory as `path`.

    The name begins with a dot and ends in `extension`, which is ``tmp``, ``lock`` or ``staging``.
    Stores do not list such names. If `unique` is true, each call returns a different path.
    Otherwise, calls with the same arguments return the same path.
    """
    folder, name = os.path.split(path)
    token = f".{secrets.token_hex(4)}" if unique else ""
    # Truncated, because file systems limit the length of names.
    return os.path.join(folder, f".{name[:48]}{token}.{extension}")


def is_hidden(name: str) -> bool:
    """Return whether `name` looks like a temporary name created by `hidden_path`."""
    return name.startswith(".") and name.endswith((".tmp", ".lock", ".staging"))


def check_not_hidden(key: str, store: str) -> None:
    """Raise RefusedError if a component of `key` looks like a temporary name; see `is_hidden`.

    Listings would omit an object with such a key.
    """
    if any(map(is_hidden, key.split("/"))):
        raise RefusedError(
            "the name is reserved for temporary files and locks",
            remedy="Rename the variable or group, or write to an object store",
            store=store,
            key=key,
        )


def write_file(path: str, size: int, fill: Callable[[int], object], *, sync: Sync) -> None:
    """Create or replace a file atomically, creating any missing parent directories.

    Readers never see a partially written file, because the file is renamed once it is complete. If
    `fill` raises an error, the file at `path` is left unchanged.

    Parameters
    ----------
    size
        Size of the new file in bytes.
    fill
        Function that takes a file descriptor and writes the content to it.
    sync
        When to flush the new file to disk:

        - ``"all"``: before this function returns.
        - ``"commit"``: when `LocalStore.flush` is called. On systems where ``syncs_each("commit")``
          is True, this is the same as ``"all"``.
        - ``"none"``: whenever the operating system decides.
    """
    temporary, sync_now = hidden_path(path, "tmp"), syncs_each(sync)
    try:
        descriptor = system.open_to_create(temporary)
    except FileNotFoundError:
        _make_folders(os.path.dirname(path), sync=sync_now)
        descriptor = system.open_to_create(temporary)
    try:
        try:
            fill(descriptor)
            if sync_now:
                os.fsync(descriptor)
            elif sync == "commit":
                system.start_sync(descriptor, size)
        finally:
            os.close(descriptor)
        system.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync_now:
        system.sync_directory(os.path.dirname(path))


def _make_folders(path: str, *, sync: bool) -> None:
    """Create a directory and any missing parents, flushing them to disk if `sync` is true."""
    existing = existing_folder(path)
    os.makedirs(path, exist_ok=True)
    while sync and path != existing:
        path = os.path.dirname(path)
        system.sync_directory(path)


def existing_folder(path: str) -> str:
    """Return `path` if it is an existing directory, otherwise its nearest existing ancestor."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def replace_directory(new: str, old: str, *, exclusive: bool = False) -> None:
    """Replace the directory `old` with the directory `new`, and remove the old directory.

    If `old` does not exist or `exclusive` is true, `new` is simply renamed to `old`. Otherwise, the
    two directories are swapped atomically if the system supports that.

    On other systems, `old` is first renamed to a hidden name, and then `new` is renamed to `old`.
    If the process is killed between the two renames, there is no directory at `old`. Both
    directories then still exist, at the hidden name and at `new`.

    Raises
    ------
    OSError
        If `exclusive` is true and `old` contains anything other than ``.DS_Store`` and similar
        files.
    """
    if exclusive or not os.path.lexists(old):
        for name in file_manager_files(old):
            system.unlink(f"{old}/{name}")
        system.rename_onto_empty(new, old)
        return
    if os.path.isdir(old):
        shutil.copymode(old, new)
    discarded = new
    if not system.exchange(new, old):
        discarded = hidden_path(old, "staging")
        system.rename(old, discarded)
        try:
            system.rename(new, old)
        except OSError:
            system.rename(discarded, old)
            raise
    remove(discarded)


def file_manager_files(folder: str) -> list[str]:
    """Return the names of ``.DS_Store`` and similar files in `folder`; see `is_file_manager_file`.

    The list is empty if `folder` does not exist.
    """
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return [
            entry.name for entry in entries if is_file_manager_file(entry.name) and entry.is_file()
        ]


def concurrent_creation_error(store: str) -> ExistsError:
    """Return the error to raise if another writer created the store during this write."""
    return ExistsError(
        "another writer created the store at the same time",
        remedy="Check what the new store contains. To replace it, pass mode='w' to to_nczarr, or "
        "pass overwrite=True to xr_nczarr.copy (nczarr copy)",
        store=store,
    )


def copy_tree(source: str, target: str, *, sync: bool) -> None:
    """Copy all files in `source`, except for temporary files, to the new directory `target`.

    Each new file is a hard link if possible, and otherwise a copy; see `link_or_copy`. If `sync` is
    true, the new directories and all copies are flushed to disk.
    """

    def copy(file: str, name: str) -> None:
        if not is_hidden(os.path.basename(file)):
            link_or_copy(file, name, sync=sync)

    try:
        shutil.copytree(source, target, copy_function=copy)
    except shutil.Error as error:  # it contains the message of each failure
        _, name, reason = error.args[0][0]
        raise OSError(f"cannot create {name}: {reason}") from error
    if sync:
        for folder, _, _ in os.walk(target):
            system.sync_directory(folder)


def link_or_copy(source: str, target: str, *, sync: bool) -> None:
    """Create a hard link at `target` to the file `source`, or a copy if a link is impossible.

    If `sync` is true, a copy is flushed to disk, but a link is not.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
        if sync:
            system.sync_file(target)


def remove(path: str) -> None:
    """Remove a file, a symbolic link, or a directory and everything in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        system.remove_tree(path)
    else:
        system.unlink(path)


def discard_tree(path: str) -> None:
    """Remove a directory, retrying if other processes are still adding files to it.

    No error is raised if the directory cannot be removed.
    """
    # After a failed write, dask workers finish writing their current chunks.
    for seconds in _REMOVAL_WAITS:
        time.sleep(seconds)
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
