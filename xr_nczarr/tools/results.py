"""Define the base class of the results that tools return."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from xr_nczarr.tools.html import page, preformatted


class Result:
    """Base class of the results of tools, which are dataclasses.

    A result prints as text, and can be converted to HTML for notebooks and to JSON.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        title, *lines = repr(self).splitlines() or [""]
        return page(title, preformatted(lines))
