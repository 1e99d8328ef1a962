"""Every option of opening, with its meaning and its default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from xr_nczarr.formats import find_format
from xr_nczarr.model import DEFAULT_LIMITS, STRICT_LIMITS, Limits, group_path

if TYPE_CHECKING:
    from xr_nczarr.chunks import ReadOptions
    from xr_nczarr.hierarchy import Consolidated
    from xr_nczarr.storage import Access

Endian = Literal["little", "big"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How to open a store.

    Attributes
    ----------
    group
        Path of the group to open; None for the root.
    storage_options
        For the filesystem, as fsspec spells them.
    missing_status
        The HTTP statuses that mean *not found*. S3 answers 403 to callers without permission to
        list the bucket.
    retry
        How failed requests are tried again, and how long an answer may take: any of ``attempts``,
        ``total_seconds``, ``first_wait``, ``longest_wait`` and ``timeout_seconds``.
    consolidated
        Whether to read the consolidated metadata alone (True), the single documents alone
        (False), or whatever is there (None). ``"check"`` reads both and raises where they differ.
    zarr_format
        ``1``, ``2``, ``"3-draft"`` or ``3``; None to recognize it.
    on_unsupported
        What a variable that cannot be read or decoded becomes: present as it is stored, where one
        that cannot be read raises its reason on access (``"lazy"``), left out (``"skip"``), or an
        error at once (``"raise"``). ``"lazy"`` warns of variables that are not decoded, and of
        coordinates of dimensions without an index.
    missing_chunks
        What a chunk that the store does not have reads as: ``"fill"``, ``"warn"`` (fill and a
        warning) or ``"raise"``.
    use_zarr_fill_value_as_mask
        Whether the ``fill_value`` of plain Zarr without a ``_FillValue`` attribute masks. None: in
        version 1 and 2 it does, as with engine zarr, but for zero in reference sets (it may be
        HDF5's default; such arrays are logged) and for the default fills of netCDF where netCDF-C
        wrote the store. In version 3 it does not.
    data_type_fallback
        Whether an unknown extension type of the v3 draft is read as the type it falls back to.
    assume_endian
        Byte order of the chunks whatever the metadata say, for files of netcdf-c up to 4.9.2,
        which could declare big endian and store little endian. Opening such a store warns.
    codecs
        Further codec classes (of numcodecs' interface) by their id.
    allow_pickle
        Whether chunks may be decoded by pickle, which runs code that the store brings along.
    follow_symlinks
        Whether symbolic links may lead out of a local directory.
    trust
        ``"none"`` for stores of strangers, as a service opens them: no links out of a local
        directory, no redirects out of a URL, reference sets that name nothing outside their own
        folder but what `allow` does, no codecs that other packages register with zarr-python, and
        `STRICT_LIMITS` for the limits that are not passed. None for the caller's own.
    threads
        Number of threads of one read; None for the number of processors.
    max_chunk_bytes, max_item_bytes, max_metadata_bytes, max_consolidated_bytes, max_nodes, \
max_depth, max_references, max_index_bytes
        Limits on what an untrusted store can make us allocate; see `Limits`. None for its default,
        or for the strict one with ``trust="none"``. A limit that is passed always holds.
    """

    group: str | None = None
    storage_options: Mapping[str, Any] | None = None
    missing_status: Sequence[int] = (404,)
    retry: Mapping[str, Any] | None = None
    consolidated: Consolidated = None
    zarr_format: int | str | None = None
    on_unsupported: Literal["lazy", "skip", "raise"] = "lazy"
    missing_chunks: Literal["fill", "warn", "raise"] = "fill"
    use_zarr_fill_value_as_mask: bool | None = None
    data_type_fallback: bool = False
    assume_endian: Endian = None
    codecs: Mapping[str, type] | None = None
    allow_pickle: bool = False
    follow_symlinks: bool = True
    trust: Literal["none"] | None = None
    threads: int | None = None
    max_chunk_bytes: int | None = None
    max_item_bytes: int | None = None
    max_metadata_bytes: int | None = None
    max_consolidated_bytes: int | None = None
    max_nodes: int | None = None
    max_depth: int | None = None
    max_references: int | None = None
    max_index_bytes: int | None = None

    def __post_init__(self) -> None:
        group_path(self.group)
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ValueError(f"threads is an integer above 0 or None; found {self.threads!r}")
        check_choice("on_unsupported", self.on_unsupported, ("lazy", "skip", "raise"))
        check_choice("missing_chunks", self.missing_chunks, ("fill", "warn", "raise"))
        check_choice("consolidated", self.consolidated, (None, True, False, "check"))
        check_choice("assume_endian", self.assume_endian, (None, "little", "big"))
        if self.zarr_format is not None:
            find_format(self.zarr_format)
        check_choice("trust", self.trust, (None, "none"))
        # Any other text would count as true: "False" of a shell as well.
        for name in ("allow_pickle", "follow_symlinks", "data_type_fallback"):
            check_choice(name, getattr(self, name), (True, False))
        masks = self.use_zarr_fill_value_as_mask
        check_choice("use_zarr_fill_value_as_mask", masks, (None, True, False))
        for name in ("storage_options", "retry", "codecs"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise ValueError(f"{name} is a mapping or None; found {getattr(self, name)!r}")
        for limit in fields(Limits):
            if not isinstance(getattr(self, limit.name), Real | None):
                value = getattr(self, limit.name)
                raise ValueError(f"{limit.name} is a number or None; found {value!r}")
        statuses: object = self.missing_status
        if not isinstance(statuses, Iterable) or not all(isinstance(s, int) for s in statuses):
            raise ValueError(f"missing_status has numbers such as (403, 404); found {statuses!r}")
        if self.trust == "none" and self.allow_pickle:
            raise ValueError("allow_pickle=True contradicts trust='none'")

    def as_dict(self) -> dict[str, Any]:
        """Return the options as keyword arguments."""
        return {name: getattr(self, name) for name in OPEN_OPTIONS}

    @property
    def limits(self) -> Limits:
        """The limits as one record."""
        defaults = STRICT_LIMITS if self.trust == "none" else DEFAULT_LIMITS
        passed = {field.name: getattr(self, field.name) for field in fields(Limits)}
        return replace(defaults, **{k: limit for k, limit in passed.items() if limit is not None})

    @property
    def access(self) -> Access:
        """How the store is reached."""
        from xr_nczarr.storage import Access, Retry

        return Access(
            storage_options=self.storage_options,
            limits=self.limits,
            retry=Retry(**(self.retry or {})),
            missing_status=tuple(self.missing_status),
            follow_symlinks=self.follow_symlinks,
            trusted=self.trust is None,
        )

    @property
    def reading(self) -> ReadOptions:
        """What the chunk engine needs to know."""
        from xr_nczarr.chunks import ReadOptions

        return ReadOptions(
            missing_chunks=self.missing_chunks,
            threads=self.threads,
            codecs=self.codecs,
            allow_pickle=self.allow_pickle,
            plugins=self.trust is None,
            limits=self.limits,
        )


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError if an option has another value than its choices."""
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}; found {value!r}")


OPEN_OPTIONS = tuple(field.name for field in fields(OpenOptions))
