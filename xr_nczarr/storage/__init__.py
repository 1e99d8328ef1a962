"""Stores map keys to bytes. Other layers access files and servers only through stores.

A store has four basic methods: `fetch`, `put`, `list_names` and `delete`. For an object that does
not exist, `fetch` yields None. Denied access, failed requests, and responses that are too short or
too long raise an error that names the key.
"""

from xr_nczarr.storage.caching import EarlierStore, KeepingStore, PrefetchGroup, PrefetchingStore
from xr_nczarr.storage.fingerprint import file_fingerprint
from xr_nczarr.storage.keys import WRITER_LOCK, Listing, is_desktop_file, names_alike, plain_name
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.location import Location, parse_url
from xr_nczarr.storage.memory import MemoryStore
from xr_nczarr.storage.open_store import Access, has_nczarr_metadata
from xr_nczarr.storage.ranges import ByteRange, Bytes, Read, Versioned
from xr_nczarr.storage.remote import RemoteStore, Rules
from xr_nczarr.storage.retries import Retry, page_error, page_in
from xr_nczarr.storage.shared_cache import SharedCache
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.system import boot
from xr_nczarr.storage.zip import ZipStore

__all__ = [
    "WRITER_LOCK",
    "Access",
    "ByteRange",
    "Bytes",
    "EarlierStore",
    "KeepingStore",
    "Listing",
    "LocalStore",
    "Location",
    "MemoryStore",
    "PrefetchGroup",
    "PrefetchingStore",
    "Read",
    "RemoteStore",
    "Retry",
    "Rules",
    "SharedCache",
    "Store",
    "Versioned",
    "ZipStore",
    "boot",
    "file_fingerprint",
    "has_nczarr_metadata",
    "is_desktop_file",
    "names_alike",
    "page_error",
    "page_in",
    "parse_url",
    "plain_name",
]
