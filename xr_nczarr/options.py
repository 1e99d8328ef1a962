"""Define the options for opening a store, with their defaults."""

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
    """Options for opening a store.

    Attributes
    ----------
    group
        Path of the group to open. If None, the root group is opened.
    storage_options
        Options of the fsspec filesystem, and some options of this package. ``retry`` is a `Retry`
        object, or a mapping with any of its fields. ``missing_status`` contains the HTTP statuses
        that mean *not found*. S3, for example, returns 403 for a missing object if the caller is
        not allowed to list the bucket. ``client`` selects the library that makes requests:
        ``"fsspec"`` or ``"obstore"``. ``allow`` lists URL prefixes and absolute paths to which a
        reference set may refer, in addition to the locations that are allowed by default.
    consolidated
        True reads only the consolidated metadata, and False only the metadata of each node. None
        reads the consolidated metadata if it exists, and otherwise the metadata of each node.
        ``"check"`` reads both and raises an error if they differ. In stores that do not support
        consolidated metadata, such as Icechunk stores, True and None have the same effect as False.
    zarr_format
        Zarr version: ``1``, ``2``, ``"3-draft"`` or ``3``. If None, the version is detected.
    on_unsupported
        How to handle a variable that cannot be read or decoded. ``"lazy"`` keeps the variable. If
        it cannot be decoded, it contains the stored values. If it cannot be read, accessing its
        values raises an error. Warnings name the variables that are not decoded, and the dimension
        coordinates without an index. ``"skip"`` leaves the variable out. ``"raise"`` raises an
        error when the store is opened. ``"fallback"`` is like ``"lazy"``, but reads unknown data
        types of the v3 draft as their fallback types.
    missing_chunks
        How to handle a chunk that is not in the store. ``"fill"`` reads fill values, ``"warn"``
        also issues a warning, and ``"raise"`` raises an error.
    use_zarr_fill_value_as_mask
        Whether the ``fill_value`` of a plain Zarr array without a ``_FillValue`` attribute marks
        missing values. As in xarray's zarr engine, None means False in v3, and True in v1 and v2.
        The exceptions are fill values that may be defaults of other libraries. In reference sets,
        these are zero, empty strings and blank strings. In stores written by netCDF-C, they are
        zero and netCDF's default fill values.
    assume_endian
        Byte order of the chunks, which overrides the metadata. If None, the metadata is trusted.
        This option is meant for stores written by netCDF-C up to 4.9.2, in which data may be
        declared as big-endian but stored as little-endian. Opening such a store issues a warning.
    codecs
        Additional codec classes with the numcodecs interface, as a mapping from codec ids to
        classes. To read pickled chunks, pass ``{"pickle": numcodecs.Pickle}``. They are not read by
        default, because unpickling can execute code that the store contains.
    trust
        Pass ``"none"`` for untrusted stores, for example in a service that opens URLs from its
        users. In this mode, symbolic links in a local directory must not lead outside the
        directory, and HTTP redirects must stay under the URL of the store. Reference sets must not
        refer to data outside their own folder and the locations in the storage option ``allow``.
        Codecs that other packages register with zarr-python are not used, and `limits` have strict
        defaults. Pass None for trusted stores.
    limits
        Limits on the memory that reading can allocate: a `Limits` object, or a mapping that
        overrides individual defaults.
    threads
        Maximum number of threads for each read. If None, it depends on the store and the chunks.
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
        check_count("threads", self.threads)
        check_choice("on_unsupported", self.on_unsupported, get_args(Unsupported))
        check_choice("missing_chunks", self.missing_chunks, get_args(MissingChunks))
        check_choice("consolidated", self.consolidated, (None, True, False, "check"))
        check_choice("assume_endian", self.assume_endian, (None, "little", "big"))
        if self.zarr_format is not None:
            find_format(self.zarr_format)
        check_choice("trust", self.trust, (None, "none"))
        # Reject strings, because even "False" from a shell would count as true.
        masks = self.use_zarr_fill_value_as_mask
        check_choice("use_zarr_fill_value_as_mask", masks, (None, True, False))
        for name in ("storage_options", "codecs"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise ValueError(f"{name} must be a mapping or None, not {getattr(self, name)!r}")
        if self.trust == "none" and "pickle" in (self.codecs or {}):
            raise ValueError("the codec 'pickle' is not allowed with trust='none'")
        _ = self.bounds

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> OpenOptions:
        """Build the options from a function's arguments.

        Arguments that are not options are ignored.
        """
        return cls(**{name: arguments[name] for name in OPEN_OPTIONS if name in arguments})

    def as_dict(self) -> dict[str, Any]:
        """Return the options as keyword arguments."""
        return {name: getattr(self, name) for name in OPEN_OPTIONS}

    @property
    def bounds(self) -> Limits:
        """The limits in effect: `limits`, with defaults that depend on `trust`."""
        limits = Limits.of(self.limits)
        return limits.strict() if self.trust == "none" else limits

    @property
    def access(self) -> Access:
        """The options for accessing the store."""
        from xr_nczarr.storage import Access

        return Access(
            storage_options=self.storage_options, limits=self.bounds, trusted=self.trust is None
        )

    @property
    def reading(self) -> ReadOptions:
        """The options for reading chunks."""
        from xr_nczarr.chunks import ReadOptions

        return ReadOptions(
            missing_chunks=self.missing_chunks,
            threads=self.threads,
            codecs=self.codecs,
            plugins=self.trust is None,
            limits=self.bounds,
        )


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError if the value of the option `name` is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_count(name: str, value: object) -> None:
    """Raise ValueError if the value of the option `name` is neither a positive integer nor None."""
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} must be a positive integer or None, not {value!r}")


OPEN_OPTIONS = tuple(field.name for field in fields(OpenOptions))
