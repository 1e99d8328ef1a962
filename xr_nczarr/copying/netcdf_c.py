"""Call functions of the netCDF-C library that netCDF4-python is linked to.

netCDF4-python itself cannot be used for exact copies. It does not distinguish characters from
strings in attributes, and it leaves out variables of unknown types. If several groups define
dimensions with the same name, it assumes that a variable uses the dimension in the nearest group.
If this assumption is wrong, it may truncate the values of the variable.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from xarray.backends.locks import HDF5_LOCK, NETCDFC_LOCK, combine_locks

from xr_nczarr.errors import StorageError, UnsupportedError

DTYPES = dict(enumerate(["i1", "S1", "i2", "i4", "f4", "f8", "u1", "u2", "u4", "i8", "u8"], 1))
"""Mapping from netCDF type numbers (``nc_type``) to NumPy dtypes."""
CHAR, STRING = 2, 12
GLOBAL, CHUNKED, LITTLE_ENDIAN, BIG_ENDIAN = -1, 0, 1, 2
LOCK = combine_locks([HDF5_LOCK, NETCDFC_LOCK])
"""The lock that xarray's own engines hold, because netCDF-C and HDF5 are not thread-safe."""

MAX_NAME = 256
_NC_NETCDF4 = 0x1000


@cache
def _library() -> ctypes.CDLL:
    # The extension module exposes the symbols of the libraries that it is linked to.
    try:
        extension = str(import_module("netCDF4._netCDF4").__file__)
    except ModuleNotFoundError as error:
        remedy = "Install netCDF4 or xr-nczarr[netcdf]"
        raise UnsupportedError("the netCDF4 package is not installed", remedy=remedy) from error
    wheel = os.path.join(os.path.dirname(extension), os.pardir, "netCDF4.libs", "*netcdf*.dll")
    conda = os.path.join(sys.prefix, "Library", "bin", "netcdf.dll")
    for path in (extension, *glob.glob(wheel), *glob.glob(conda)):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            if hasattr(library, "nc_inq_att"):
                library.nc_strerror.restype = ctypes.c_char_p
                return library
    raise UnsupportedError(
        "the installed netCDF4 package does not expose its netCDF-C library",
        remedy="Open or write the file with another xarray engine, for example engine='h5netcdf'",
    )


class Handle:
    """An open netCDF file.

    A handle can be pickled only if its file is open for reading. A process that unpickles the
    handle several times reopens the file only once.

    Parameters
    ----------
    create
        Whether to create a netCDF-4 file, replacing any existing file. By default, the file is
        opened for reading.
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
        """Call a netCDF-C function.

        Raises
        ------
        StorageError
            If the function fails. The message includes netCDF-C's error message.
        """
        status = self.status(function, *arguments)
        if status:
            reason = _library().nc_strerror(status).decode()
            raise StorageError(
                f"netCDF-C cannot {'write' if self.created else 'read'} the file: {reason}",
                remedy=""
                if self.created
                else "Open the file with another xarray engine, for example engine='h5netcdf'",
                store=self.path,
            )

    def status(self, function: str, *arguments: Any) -> int:
        """Call a netCDF-C function, and return its status code, which is 0 for success."""
        return int(getattr(_library(), function)(*arguments))

    def integer(self, function: str, *arguments: Any, kind: Any = ctypes.c_int) -> int:
        """Call a netCDF-C function, and return the integer that it writes to its last parameter.

        `arguments` contains the arguments before this parameter. `kind` is the C type of the
        integer.
        """
        result = kind()
        self.call(function, *arguments, ctypes.byref(result))
        return int(result.value)

    def ids(
        self,
        function: str,
        *arguments: Any,
        rest: Sequence[Any] = (),
        types: tuple[Any, Any] = (ctypes.c_int, ctypes.c_int),
    ) -> list[int]:
        """Call a netCDF-C function, and return the integers that it writes to an array.

        The function must have two consecutive output parameters: the number of integers, and the
        array.

        Parameters
        ----------
        arguments, rest
            The arguments before and after these two parameters.
        types
            The C types of the number of integers, and of the integers themselves.
        """
        count = types[0]()
        self.call(function, *arguments, ctypes.byref(count), None, *rest)
        listed = (types[1] * count.value)()
        self.call(function, *arguments, ctypes.byref(count), listed, *rest)
        return list(listed)

    def name(self, function: str, *arguments: Any) -> str:
        """Call a netCDF-C function, and return the name that it writes to its last parameter.

        `arguments` contains the arguments before this parameter.
        """
        name = ctypes.create_string_buffer(MAX_NAME + 1)
        self.call(function, *arguments, name)
        return text_of(name.value)

    def group(self, path: str) -> int:
        """Return netCDF-C's identifier for the group at an absolute path."""
        assert self.ncid is not None
        if path == "/":
            return self.ncid
        return self.integer("nc_inq_grp_full_ncid", self.ncid, os.fsencode(path))

    def strings(self, count: int, function: str, *arguments: Any) -> list[str]:
        """Call a netCDF-C function, and return the strings that it writes to its last parameter.

        `arguments` contains the arguments before this parameter. `count` is the number of strings.
        """
        listed = (ctypes.c_char_p * count)()
        self.call(function, *arguments, listed)
        texts = [text_of(text or b"") for text in listed]
        self.call("nc_free_string", ctypes.c_size_t(count), listed)
        return texts


@cache
def _reopened(path: str, *_: int) -> Handle:
    """Return an open handle for a file. The handle is reused until the file changes."""
    # The cache also compares the other arguments: the modification time and the size of the file.
    # It keeps files open until the process ends. The garbage collector must not close them at an
    # unpredictable time, because closing a file acquires the HDF5 lock.
    return Handle(path)


def text_of(data: bytes) -> str:
    """Decode UTF-8 text from netCDF-C. Invalid bytes become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")
