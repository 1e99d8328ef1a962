"""The public names and signatures. A change to them changes the interface for users."""

import dataclasses
import doctest
import importlib
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import xr_nczarr
from xr_nczarr.accessor import NczarrAccessor
from xr_nczarr.backend.entrypoint import NczarrBackendEntrypoint
from xr_nczarr.errors import NczarrError

SNAPSHOT = Path(__file__).parent / "fixtures/public_api.txt"


def signatures() -> Iterator[str]:
    """Yield a line for each public name and for each parameter with its default."""
    for name in sorted(xr_nczarr.__all__):
        yield from described(name, getattr(xr_nczarr, name))
    for name in ("expand", "write"):
        yield from described(f"references.{name}", getattr(xr_nczarr.references, name))
    yield from described("Dataset.nczarr", NczarrAccessor)
    yield from described("NczarrBackendEntrypoint", NczarrBackendEntrypoint)


def described(name: str, value: Any) -> Iterator[str]:
    """Yield a line for a public name, and for each public method if it is a class."""
    if inspect.ismodule(value):
        yield f"module {name}"
    elif inspect.isfunction(value):
        signature = inspect.signature(value)
        parameters = [item.replace(annotation=item.empty) for item in signature.parameters.values()]
        signature = signature.replace(parameters=parameters, return_annotation=signature.empty)
        yield f"{name}{signature}"
    elif issubclass(value, NczarrError):
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    else:
        fields = [item.name for item in dataclasses.fields(value)] if is_dataclass(value) else []
        yield f"class {name}({', '.join(fields)})"
        for member, method in sorted(vars(value).items()):
            if isinstance(method, property):
                yield f"{name}.{member}"
            elif inspect.isfunction(method) and member[0] != "_":
                yield from described(f"{name}.{member}", method)


def test_public_names_and_signatures_match_snapshot():
    """Run `python -m tests.test_public_api` to record an intended change."""
    assert SNAPSHOT.read_text().splitlines() == [*signatures()]


def test_every_public_name_is_documented():
    assert not [name for name in xr_nczarr.__all__ if not inspect.getdoc(getattr(xr_nczarr, name))]


def test_lazily_imported_public_names_are_listed_by_dir_and_help():
    code = "import xr_nczarr; assert {*xr_nczarr.__all__} <= {*dir(xr_nczarr)}"
    code += "; import pydoc; page = pydoc.plain(pydoc.render_doc(xr_nczarr))"
    code += "; assert 'to_nczarr(obj' in ''.join(page.split())"  # Python 3.13 wraps signatures
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", xr_nczarr.__all__)
def test_examples_in_public_docstrings_run_successfully(name):
    result = doctest.DocTestFinder(recurse=False).find(getattr(xr_nczarr, name), name)
    for example in result:
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


EXAMPLES = [
    path
    for path in sorted(Path(xr_nczarr.__file__).parent.rglob("*.py"))
    if ">>>" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_in_internal_docstrings_run_successfully(path):
    parts = path.relative_to(Path(xr_nczarr.__file__).parent.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts))
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("name", [name for name in xr_nczarr.__all__ if name.endswith("Error")])
def test_pickled_errors_keep_message_and_fields(name):
    fields = {"remedy": "r", "store": "s", "key": "k", "place": "p", "variable": "/v"}
    error = getattr(xr_nczarr, name)("problem", chunk=(1, 2), **fields)
    error.problem = "another"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{line}\n" for line in signatures()))
