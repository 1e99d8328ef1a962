"""Draft stores recorded from programs that are no longer installed: see `fixtures/v3_draft`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent / "fixtures" / "v3_draft"


def recorded_store(name: str) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the objects of a recorded store by key, and the values that its writer read back."""
    document = json.loads((_FOLDER / name).read_bytes())
    objects = {key: base64.b64decode(data) for key, data in document["keys"].items()}
    return objects, document["values"]


def recorded_form(array: np.ndarray) -> Any:
    """Return values in the form in which the script of a fixture recorded them."""
    if array.dtype.kind in "SV":
        return [base64.b64encode(item.tobytes()).decode() for item in array.reshape(-1)]
    if array.dtype.kind in "Mm":
        array = array.astype("<i8")
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    return array.tolist()
