"""The storage layer: stores, which are mappings from keys to objects.

An object is a byte string, such as the content of a file. Other layers access files and servers
only through stores. A store has four basic methods: `fetch` reads objects, `put` writes objects,
`list_names` lists the names under a prefix, and `delete` removes objects. For an object that does
not exist, `fetch` yields None. If access is denied, a request fails, or a response is too short or
too long, the store raises an error that names the key.
"""

from xr_nczarr.storage.fingerprint import file_fingerprint
from xr_nczarr.storage.keys import (
    WRITER_LOCK,
    Listing,
    fold_name,
    is_file_manager_file,
    name_collisions,
)
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.location import Location, parse_target
from xr_nczarr.storage.memory import MemoryStore
from xr_nczarr.storage.open_store import Access
from xr_nczarr.storage.ranges import ByteRange, Bytes, Read, Versioned
from xr_nczarr.storage.remote import RemoteStore
from xr_nczarr.storage.retries import Retry, page_error, page_in
from xr_nczarr.storage.shared_cache import SharedCache
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.system import boot_id
from xr_nczarr.storage.wrappers import (
    MemoizingStore,
    PrefetchGroup,
    PrefetchingStore,
    RolledBackStore,
)
from xr_nczarr.storage.zip import ZipStore

__all__ = [
    "WRITER_LOCK",
    "Access",
    "ByteRange",
    "Bytes",
    "Listing",
    "LocalStore",
    "Location",
    "MemoizingStore",
    "MemoryStore",
    "PrefetchGroup",
    "PrefetchingStore",
    "Read",
    "RemoteStore",
    "Retry",
    "RolledBackStore",
    "SharedCache",
    "Store",
    "Versioned",
    "ZipStore",
    "boot_id",
    "file_fingerprint",
    "fold_name",
    "is_file_manager_file",
    "name_collisions",
    "page_error",
    "page_in",
    "parse_target",
]
