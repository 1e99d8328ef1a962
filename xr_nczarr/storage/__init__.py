"""Keys ⇄ bytes: the only room that touches anything outside the process.

A store is four verbs (`fetch`, `put`, `list_names`, `delete`). An absent object is a value
(``None``); a refused, failed, short or over-long answer is an error that names the key.
"""

from xr_nczarr.references import is_record_document
from xr_nczarr.storage.caching import EarlierStore, PrefetchingStore
from xr_nczarr.storage.filesystem import FilesystemStore
from xr_nczarr.storage.fingerprint import file_fingerprint, fingerprint
from xr_nczarr.storage.keys import WRITER_LOCK, is_desktop_file, sizes_of, stored_keys, stored_sizes
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.memory import MemoryStore
from xr_nczarr.storage.opening import has_nczarr_metadata, open_store
from xr_nczarr.storage.protocol import ByteRange, Listing, Store, check_new_keys, fetch_present
from xr_nczarr.storage.reference import ReferenceStore
from xr_nczarr.storage.reference_opening import open_record_set
from xr_nczarr.storage.replacing import in_one_step
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.system import boot, is_inside, is_same_place
from xr_nczarr.storage.url import Location, parse_url
from xr_nczarr.storage.zip import ZipStore

__all__ = [
    "WRITER_LOCK",
    "ByteRange",
    "EarlierStore",
    "FilesystemStore",
    "Listing",
    "LocalStore",
    "Location",
    "MemoryStore",
    "PrefetchingStore",
    "ReferenceStore",
    "Retry",
    "Store",
    "ZipStore",
    "boot",
    "check_new_keys",
    "fetch_present",
    "file_fingerprint",
    "fingerprint",
    "has_nczarr_metadata",
    "in_one_step",
    "is_desktop_file",
    "is_inside",
    "is_record_document",
    "is_same_place",
    "open_record_set",
    "open_store",
    "parse_url",
    "sizes_of",
    "stored_keys",
    "stored_sizes",
]
