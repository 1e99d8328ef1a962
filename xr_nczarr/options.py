"""Every option of opening, with its meaning and its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from xr_nczarr.formats import find_format
from xr_nczarr.model import Consolidated, Limits, group_path

if TYPE_CHECKING:
    from xr_nczarr.chunks import ReadOptions
    from xr_nczarr.storage import Access

Endian = Literal["little", "big"] | None
MissingChunks = Literal["fill", "warn", "raise"]
Unsupported = Literal["lazy", "skip", "raise", "fallback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How to open a store.

    Attributes
    ----------
    group
        Path of the group to open; None for the root.
    storage_options
        For the filesystem, as fsspec spells them, and three of this package: ``retry`` (a `Retry`
        or a mapping of some of its fields), ``missing_status`` (the HTTP statuses that mean *not
        found*: S3 answers 403 to callers without permission to list the bucket) and ``client``.
    consolidated
        Whether to read the consolidated metadata alone (True), the single documents alone
        (False), or whatever is there (None). ``"check"`` reads both and raises where they differ.
    zarr_format
        ``1``, ``2``, ``"3-draft"`` or ``3``; None to recognize it.
    on_unsupported
        What a variable that cannot be read or decoded becomes: present as it is stored, where one
        that cannot be read raises its reason on access (``"lazy"``), left out (``"skip"``), or an
        error at once (``"raise"``). ``"lazy"`` warns of variables that are not decoded, and of
        coordinates of dimensions without an index. ``"fallback"`` is ``"lazy"``, but reads unknown
        types of the v3 draft as the types that they fall back to.
    missing_chunks
        What a chunk that the store does not have reads as: ``"fill"``, ``"warn"`` (fill and a
        warning) or ``"raise"``.
    use_zarr_fill_value_as_mask
        Whether the ``fill_value`` of plain Zarr without a ``_FillValue`` attribute masks. None: in
        version 1 and 2 it does, as with engine zarr, but for zero in reference sets (it may be
        HDF5's default; such arrays are logged) and for the default fills of netCDF where netCDF-C
        wrote the store. In version 3 it does not.
    assume_endian
        Byte order of the chunks whatever the metadata say, for files of netcdf-c up to 4.9.2,
        which could declare big endian and store little endian. Opening such a store warns.
    codecs
        Further codec classes, with numcodecs' interface, by their id. Pickled chunks are read only
        with ``{"pickle": numcodecs.Pickle}``: reading them runs code that the store contains.
    trust
        ``"none"`` for stores of strangers, as a service opens them: no links out of a local
        directory, no redirects out of a URL, reference sets that name nothing outside their own
        folder but what `allow` does, no codecs that other packages register with zarr-python, and
        strict defaults for `limits`. None for the caller's own.
    limits
        Bounds on what reading can allocate, as `Limits` or a mapping of some of them.
    threads
        Number of threads of one read; None for the number of processors.
    """

    group: str | None = None
    storage_options: Mapping[str, Any] | None = None
    consolidated: Consolidated = None
    zarr_format: int | str | None = None
    on_unsupported: Unsupported = "lazy"
    missing_chunks: MissingChunks = "fill"
    use_zarr_fill_value_as_mask: bool | None = None
    assume_endian: Endian = None
    codecs: Mapping[str, type] | None = None
    trust: Literal["none"] | None = None
    limits: Limits | Mapping[str, int] | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        group_path(self.group)
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ValueError(f"threads is an integer above 0 or None; found {self.threads!r}")
        check_choice("on_unsupported", self.on_unsupported, get_args(Unsupported))
        check_choice("missing_chunks", self.missing_chunks, get_args(MissingChunks))
        check_choice("consolidated", self.consolidated, (None, True, False, "check"))
        check_choice("assume_endian", self.assume_endian, (None, "little", "big"))
        if self.zarr_format is not None:
            find_format(self.zarr_format)
        check_choice("trust", self.trust, (None, "none"))
        # Any other text would count as true: "False" of a shell as well.
        masks = self.use_zarr_fill_value_as_mask
        check_choice("use_zarr_fill_value_as_mask", masks, (None, True, False))
        for name in ("storage_options", "codecs"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise ValueError(f"{name} is a mapping or None; found {getattr(self, name)!r}")
        if self.trust == "none" and "pickle" in (self.codecs or {}):
            raise ValueError("the codec pickle contradicts trust='none'")
        _ = self.bounds

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> OpenOptions:
        """Return the options among the arguments of a function."""
        return cls(**{name: arguments[name] for name in OPEN_OPTIONS if name in arguments})

    def as_dict(self) -> dict[str, Any]:
        """Return the options as keyword arguments."""
        return {name: getattr(self, name) for name in OPEN_OPTIONS}

    @property
    def bounds(self) -> Limits:
        """The limits that hold."""
        limits = Limits.of(self.limits)
        return limits.strict() if self.trust == "none" else limits

    @property
    def access(self) -> Access:
        """How the store is reached."""
        from xr_nczarr.storage import Access

        return Access(
            storage_options=self.storage_options, limits=self.bounds, trusted=self.trust is None
        )

    @property
    def reading(self) -> ReadOptions:
        """What the chunk engine needs to know."""
        from xr_nczarr.chunks import ReadOptions

        return ReadOptions(
            missing_chunks=self.missing_chunks,
            threads=self.threads,
            codecs=self.codecs,
            plugins=self.trust is None,
            limits=self.bounds,
        )


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError if an option has another value than its choices."""
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}; found {value!r}")


OPEN_OPTIONS = tuple(field.name for field in fields(OpenOptions))
