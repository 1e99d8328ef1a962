"""Define the base class for the results that tools return."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from xr_nczarr.tools.html import page, preformatted


class Result:
    """Base class for the results of tools. Its subclasses are dataclasses.

    A result can be printed as text, rendered as HTML in notebooks, and converted to JSON values.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dictionary."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        title, *lines = repr(self).splitlines() or [""]
        return page(title, preformatted(lines))
