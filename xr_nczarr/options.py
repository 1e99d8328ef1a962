"""The options of opening a store, with their defaults."""

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
        Options of the fsspec filesystem, and three of this package: ``retry`` (a `Retry` or a
        mapping of some of its fields), ``missing_status`` (the HTTP statuses that mean *not found*:
        S3 answers 403 to callers without permission to list the bucket) and ``client``.
    consolidated
        Whether to read only the consolidated metadata (True), only the single documents (False), or
        whichever exist (None). ``"check"`` reads both and raises where they differ.
    zarr_format
        ``1``, ``2``, ``"3-draft"`` or ``3``; None to recognize it.
    on_unsupported
        How to handle a variable that cannot be read or decoded. ``"lazy"`` keeps it: one that
        cannot be decoded has its stored values, one that cannot be read raises its error on access.
        It warns about variables that are not decoded, and about dimension coordinates without an
        index. ``"skip"`` leaves the variable out. ``"raise"`` raises its error on opening.
        ``"fallback"`` is ``"lazy"``, but reads unknown types of the v3 draft as their fallback
        types.
    missing_chunks
        How to read a chunk that is not in the store: as fill values (``"fill"``), as fill values
        with a warning (``"warn"``), or as an error (``"raise"``).
    use_zarr_fill_value_as_mask
        Whether the ``fill_value`` of a plain Zarr array without a ``_FillValue`` attribute marks
        missing values. With None, it does in version 1 and 2, as with engine zarr, but not in
        version 3. Two fill values are excepted: zero in reference sets, which may be HDF5's default
        (such arrays are logged), and netCDF's default fill values in stores that netCDF-C wrote.
    assume_endian
        Byte order of the chunks, which overrides the metadata. It is meant for stores of netcdf-c
        up to 4.9.2, which could declare big-endian data but store them as little endian. Opening
        such a store warns.
    codecs
        Additional codec classes by id, with numcodecs' interface. Pickled chunks are read only
        with ``{"pickle": numcodecs.Pickle}``: reading them runs code that the store contains.
    trust
        ``"none"`` for untrusted stores, as a service opens them. Links must not leave a local
        directory, redirects must not leave the URL, and reference sets must stay within their own
        folder and the places in `allow`. Codecs that other packages register with zarr-python are
        not used, and `limits` have strict defaults. None for trusted stores.
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
            raise ValueError(f"threads must be an integer above 0 or None; found {self.threads!r}")
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
                raise ValueError(f"{name} must be a mapping or None; found {getattr(self, name)!r}")
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
        """The limits in effect."""
        limits = Limits.of(self.limits)
        return limits.strict() if self.trust == "none" else limits

    @property
    def access(self) -> Access:
        """The options of accessing the store."""
        from xr_nczarr.storage import Access

        return Access(
            storage_options=self.storage_options, limits=self.bounds, trusted=self.trust is None
        )

    @property
    def reading(self) -> ReadOptions:
        """The options of reading chunks."""
        from xr_nczarr.chunks import ReadOptions

        return ReadOptions(
            missing_chunks=self.missing_chunks,
            threads=self.threads,
            codecs=self.codecs,
            plugins=self.trust is None,
            limits=self.bounds,
        )


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError if the value of an option is not one of its choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; found {value!r}")


OPEN_OPTIONS = tuple(field.name for field in fields(OpenOptions))
