"""Call netcdf-c directly, through the library that netCDF4-python includes.

netCDF4-python itself cannot be used for exact copies. In attributes, it does not distinguish
characters from strings. It leaves out variables of unknown types. If several dimensions have the
same name, it takes the nearest one, and truncates the values of the variable.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from xarray.backends.locks import HDF5_LOCK, NETCDFC_LOCK, combine_locks

from xr_nczarr.errors import StorageError, UnsupportedError

DTYPES = dict(enumerate(["i1", "S1", "i2", "i4", "f4", "f8", "u1", "u2", "u4", "i8", "u8"], 1))
"""NumPy dtypes by nc_type."""
CHAR, STRING = 2, 12
GLOBAL, CHUNKED, LITTLE_ENDIAN, BIG_ENDIAN = -1, 0, 1, 2
LOCK = combine_locks([HDF5_LOCK, NETCDFC_LOCK])
"""The lock of xarray's own engines, because netcdf-c and HDF5 are not thread-safe."""

MAX_NAME = 256
_NC_NETCDF4 = 0x1000


@cache
def _library() -> ctypes.CDLL:
    # The extension module exposes the symbols of the libraries it is linked with.
    try:
        extension = str(import_module("netCDF4._netCDF4").__file__)
    except ModuleNotFoundError as error:
        remedy = "Install netCDF4 or xr-nczarr[netcdf]"
        raise UnsupportedError("the package netCDF4 is not installed", remedy=remedy) from error
    wheel = os.path.join(os.path.dirname(extension), os.pardir, "netCDF4.libs", "*netcdf*.dll")
    conda = os.path.join(sys.prefix, "Library", "bin", "netcdf.dll")
    for path in (extension, *glob.glob(wheel), *glob.glob(conda)):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            if hasattr(library, "nc_inq_att"):
                library.nc_strerror.restype = ctypes.c_char_p
                return library
    raise UnsupportedError(
        "the installed package netCDF4 does not expose its netcdf-c library",
        remedy="Copy the file with another xarray engine, such as engine='h5netcdf'",
    )


class Handle:
    """An open netCDF file. An unpickled copy opens the file again for reading, once per process.

    Parameters
    ----------
    create
        Whether to create a new netCDF-4 file, which replaces an existing file.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path, self.created = path, create
        ncid = ctypes.c_int()
        function, mode = ("nc_create", _NC_NETCDF4) if create else ("nc_open", 0)
        with LOCK:
            self.call(function, os.fsencode(path), mode, ctypes.byref(ncid))
        self.ncid: int | None = ncid.value

    def __reduce__(self) -> tuple[Any, ...]:
        if self.created:
            raise TypeError("a netCDF file that is open for writing cannot be pickled")
        status = os.stat(self.path)
        return _reopened, (self.path, status.st_mtime_ns, status.st_size)

    def close(self) -> None:
        """Close the file if it is still open."""
        ncid, self.ncid = self.ncid, None
        if ncid is not None:
            with LOCK:
                self.call("nc_close", ncid)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of netcdf-c.

        If it fails, raise StorageError with the message of netcdf-c.
        """
        status = self.status(function, *arguments)
        if status:
            reason = _library().nc_strerror(status).decode()
            raise StorageError(
                f"netcdf-c cannot {'write' if self.created else 'read'} the file: {reason}",
                remedy=""
                if self.created
                else "Copy the file with another xarray engine, such as engine='h5netcdf'",
                store=self.path,
            )

    def status(self, function: str, *arguments: Any) -> int:
        """Call a function of netcdf-c, and return its status, which is 0 for success."""
        return int(getattr(_library(), function)(*arguments))

    def integer(self, function: str, *arguments: Any) -> int:
        """Return the integer that a function of netcdf-c writes to its last argument."""
        result = ctypes.c_int()
        self.call(function, *arguments, ctypes.byref(result))
        return result.value

    def ids(self, function: str, group: int, *rest: Any) -> list[int]:
        """Return the identifiers that a function such as ``nc_inq_grps`` lists for a group."""
        count = ctypes.c_int()
        self.call(function, group, ctypes.byref(count), None, *rest)
        listed = (ctypes.c_int * count.value)()
        self.call(function, group, ctypes.byref(count), listed, *rest)
        return list(listed)

    def name(self, function: str, *arguments: Any) -> str:
        """Return the name that a function of netcdf-c writes to its last argument."""
        name = ctypes.create_string_buffer(MAX_NAME + 1)
        self.call(function, *arguments, name)
        return text_of(name.value)

    def group(self, path: str) -> int:
        """Return the netcdf-c identifier of the group at an absolute path."""
        assert self.ncid is not None
        if path == "/":
            return self.ncid
        return self.integer("nc_inq_grp_full_ncid", self.ncid, os.fsencode(path))

    def strings(self, count: int, function: str, *arguments: Any) -> list[str]:
        """Return the strings that a function of netcdf-c allocates, and free their memory."""
        listed = (ctypes.c_char_p * count)()
        self.call(function, *arguments, listed)
        texts = [text_of(text or b"") for text in listed]
        self.call("nc_free_string", ctypes.c_size_t(count), listed)
        return texts


@cache
def _reopened(path: str, *_: int) -> Handle:
    """Return the handle for a file in this process, given its path, modification time and size.

    The file stays open until the process ends. Closing it acquires the lock of the HDF5 library,
    which must not happen at the unpredictable times when the garbage collector runs.
    """
    return Handle(path)


def text_of(data: bytes) -> str:
    """Decode UTF-8 from netcdf-c. Invalid bytes become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")
