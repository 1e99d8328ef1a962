"""The JSON output of the commands conforms to its published schema."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.interop import test_zarr_rectilinear as rectilinear
from xr_nczarr.cli.main import main

SCHEMAS = Path(__file__).parents[2] / "docs/reference/schemas"
COMMANDS = {
    "info": ["info"],
    "info without chunks": ["info", "--metadata"],
    "verify": ["verify", "--readers"],
    "explain": ["explain"],
    "explain a selection": ["explain", "--select", "x=0"],
}


def tree() -> xr.DataTree:
    values = {"v": (("x", "y"), np.arange(12.0).reshape(3, 4)), "s": ((), "text")}
    data = xr.Dataset(values, {"x": [1, 2, 3]})
    return xr.DataTree.from_dict({"/": data, "/g": data})


def stores(folder: Path) -> dict[str, Path]:
    """Return stores of several kinds, some of them damaged."""
    encoding = {"/": {"v": {"chunks": (1, 4), "zlib": True}}}
    paths = {name: folder / name for name in ("whole", "damaged", "sharded", "rectilinear")}
    for name in ("whole", "damaged"):
        xr_nczarr.to_nczarr(tree(), paths[name], encoding=encoding)
    shards = {"v": {"chunks": (1, 2), "shards": (3, 4)}}
    data = tree().to_dataset()
    xr_nczarr.to_nczarr(data, paths["sharded"], zarr_format=3, encoding=shards)
    (paths["damaged"] / "v/0.0").write_bytes(b"cut")
    (paths["damaged"] / "v/1.0").unlink()
    (paths["damaged"] / "x/0").unlink()
    (paths["damaged"] / "g/v/.zarray").write_text("{")
    for key, value in rectilinear.STORE.items():
        path = paths["rectilinear"] / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    return paths


CHANGING_COMMANDS = {
    "diff": "diff {0} {1}",
    "copy": "copy {0} {2}",
    "upgrade": "upgrade --annotate {3}",
    "consolidate": "consolidate {0}",
    "references": "references {0} {2}.json",
}


@pytest.mark.parametrize("name", CHANGING_COMMANDS)
def test_json_output_of_other_commands_conforms_to_published_schema(name, tmp_path, capsys):
    paths = [tmp_path / letter for letter in "abcd"]
    data = tree().to_dataset()
    xr_nczarr.to_nczarr(data, paths[0])
    xr_nczarr.to_nczarr(data.assign_attrs(n=1).drop_vars("s"), paths[1])
    xr_nczarr.to_nczarr(data.drop_vars("s"), paths[3], dialect="zarr")
    words = CHANGING_COMMANDS[name].format(*paths).split()
    assert main([*words, "--json"]) == int(name == "diff")
    check(capsys.readouterr().out, name)


def check(text: str, name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("kind", ["whole", "damaged", "sharded", "rectilinear"])
@pytest.mark.parametrize("command", COMMANDS)
def test_json_output_conforms_to_published_schema(command, kind, tmp_path, capsys):
    path = stores(tmp_path)[kind]
    assert main([*COMMANDS[command], "--json", str(path)]) in (0, 1)
    check(capsys.readouterr().out, COMMANDS[command][0])
