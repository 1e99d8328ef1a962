"""netCDF groups are converted to Zarr hierarchies in every version and dialect, and back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.nodes import array, group, hierarchy
from xr_nczarr.errors import UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.model import CodecSpec
from xr_nczarr.netcdf import Dimension, Group, Layout, Variable, annotate, interpret
from xr_nczarr.netcdf.annotations import find_types
from xr_nczarr.netcdf.types import (
    DTYPE_NAMES,
    EXACT_FILL,
    NUMBERS,
    ROUNDED_FILL,
    attribute_type,
    default_fill,
)

ANNOTATED = [("2", "nczarr"), ("2", "universal"), ("3", "nczarr"), ("3-draft", "nczarr")]
OLD = [("2", "nczarr-4.8.1"), ("2", "nczarr-4.9.1"), ("2", "nczarr-4.9.3")]
PURE = [("1", "zarr"), ("2", "zarr"), ("3", "zarr"), ("3-draft", "zarr")]

names = st.text(st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1)
names = names.filter(lambda name: name not in (".", "..") and not name.startswith("_"))
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.sampled_from(sorted(NUMBERS)).flatmap(
    lambda name: hnp.arrays(name, 1).map(lambda values: values[0])
)
attributes = st.dictionaries(names, st.one_of(texts, scalars, st.lists(texts, min_size=2)))
KINDS = [*((dtype.str, "number") for dtype in DTYPE_NAMES), ("|S1", "char"), ("|S6", "string")]


@st.composite
def variables(draw, path, visible):
    dtype, kind = draw(st.sampled_from(KINDS))
    used = tuple(draw(st.lists(st.sampled_from(visible), max_size=3))) if visible else ()
    fill = default_fill(np.dtype(dtype))
    result = draw(attributes)
    if kind == "number" and draw(st.booleans()):
        fill = draw(hnp.arrays(np.dtype(dtype), 1))[0]
        # The rounded default fill value that netcdf-c stores is always read as the exact value.
        fill = EXACT_FILL if fill == ROUNDED_FILL and dtype[1:] == "f8" else fill
        result["_FillValue"] = fill
    shape = tuple(dimension.size for dimension in used)
    node = array(path, shape, dtype, fill_value=fill)
    return Variable(path=path, dimensions=used, node=node, attributes=result, kind=kind)


@st.composite
def groups(draw, path="", inherited=(), depth=1):
    own = draw(st.dictionaries(names, st.tuples(st.integers(0, 9), st.booleans()), max_size=3))
    dimensions = {name: Dimension(name, f"{path}/{name}", *size) for name, size in own.items()}
    visible = [*inherited, *dimensions.values()]
    children = draw(st.lists(names, unique=True, max_size=4))
    split = draw(st.integers(0, len(children))) if depth else len(children)
    return Group(
        path=path or "/",
        dimensions=dimensions,
        variables={name: draw(variables(f"{path}/{name}", visible)) for name in children[:split]},
        attributes=draw(attributes),
        groups={
            name: draw(groups(f"{path}/{name}", visible, depth - 1)) for name in children[split:]
        },
    )


def annotated(group, zarr_format="2", **options):
    return annotate(group, Layout(zarr=FORMATS[zarr_format], **options))


def assert_same_group(result, expected, *, keeps_unlimited=True):
    assert (result.path, result.error, result.reports) == (expected.path, None, [])
    np.testing.assert_equal(result.attributes, expected.attributes)
    for name, dimension in expected.dimensions.items():
        unlimited = dimension.unlimited and keeps_unlimited
        assert result.dimensions[name] == replace(dimension, unlimited=unlimited)
    assert list(result.variables) == list(expected.variables)
    for name, variable in expected.variables.items():
        assert_same_variable(result.variables[name], variable)
    assert list(result.groups) == list(expected.groups)
    for name, child in expected.groups.items():
        assert_same_group(result.groups[name], child, keeps_unlimited=keeps_unlimited)


def assert_same_variable(result, expected):
    assert (result.error, result.kind, result.shape) == (None, expected.kind, expected.shape)
    assert [item.path for item in result.dimensions] == [item.path for item in expected.dimensions]
    assert result.node.dtype == expected.node.dtype
    np.testing.assert_equal(result.attributes, expected.attributes)
    np.testing.assert_equal(result.fill_value, expected.fill_value)
    for name, value in expected.attributes.items():
        assert type(result.attributes[name]) is type(value)


@pytest.mark.parametrize(("zarr_format", "dialect"), ANNOTATED)
@settings(max_examples=30, deadline=None)
@given(top=groups())
def test_groups_round_trip_through_annotated_zarr_metadata(zarr_format, dialect, top):
    stored = annotated(top, zarr_format=zarr_format, dialect=dialect)
    root = interpret(stored)
    assert_same_group(root, top)
    assert root.dialect == ("nczarr-4.9.3" if zarr_format == "2" else "nczarr-preview")
    assert repr(annotated(root, zarr_format=zarr_format, dialect=dialect)) == repr(stored)


SIZES = {"t": Dimension("t", "/t", 3, True), "x": Dimension("x", "/x", 2)}


def sample(**fields):
    codecs = (CodecSpec("zlib", {"level": 1}, "compressor"),)
    scalar = Variable(path="/s", node=array("/s", (), "<f8"), attributes={"n": np.int16(7)})
    packed = Variable(
        path="/v",
        dimensions=(SIZES["t"], SIZES["x"]),
        node=array("/v", (3, 2), "<f4", fill_value=np.float32(-9), codecs=codecs),
        attributes={"_FillValue": np.float32(-9), "valid": np.array([1, 2], "i2"), "text": "1.10"},
    )
    child = Variable(path="/g/w", dimensions=(SIZES["x"],), node=array("/g/w", (2,), "<i4"))
    below = Group(path="/g", variables={"w": child})
    both = {"s": scalar, "v": packed}
    return Group(
        dimensions=SIZES, variables=both, attributes={"title": "é"}, groups={"g": below}, **fields
    )


@pytest.mark.parametrize(("zarr_format", "dialect"), OLD)
def test_older_layouts_preserve_everything_except_unlimited_dimensions(zarr_format, dialect):
    root = interpret(annotated(sample(), zarr_format=zarr_format, dialect=dialect))
    assert_same_group(root, sample(), keeps_unlimited=dialect == "nczarr-4.9.3")
    assert root.dialect == dialect


@pytest.mark.parametrize(("zarr_format", "dialect"), PURE)
def test_plain_zarr_preserves_dimensions_attributes_and_fill_values(zarr_format, dialect):
    root = interpret(annotated(sample(), zarr_format=zarr_format, dialect=dialect))
    assert root.dialect == "zarr"
    assert root.dimensions == {name: replace(size, unlimited=False) for name, size in SIZES.items()}
    assert root.groups["g"].variables["w"].dimensions == (root.dimensions["x"],)
    assert (root.attributes, root.variables["s"].shape) == ({"title": "é"}, ())
    variable = root.variables["v"]
    assert variable.shape == (3, 2)
    assert variable.attributes["_FillValue"] == np.float32(-9)
    assert variable.attributes["text"] == "1.10"


def attributes_of(zarr_format, dialect, path="/v", **options):
    stored = annotated(sample(), zarr_format=zarr_format, dialect=dialect, **options)
    return dict(stored.nodes[path].attributes)


def test_v2_annotations_equal_those_of_netcdf_c_4_10():
    assert attributes_of("2", "nczarr", "/") == {
        "title": "é",
        "_nczarr_group": {
            "dimensions": {"t": {"size": 3, "unlimited": 1}, "x": 2},
            "arrays": ["s", "v"],
            "groups": ["g"],
        },
        "_nczarr_superblock": {"version": "2.0.0"},
        "_nczarr_attr": {
            "types": {
                "title": ">S1",
                "_nczarr_group": "|J0",
                "_nczarr_superblock": "|J0",
                "_nczarr_attr": "|J0",
            }
        },
    }
    assert attributes_of("2", "nczarr", "/s") == {
        "n": 7,
        "_ARRAY_DIMENSIONS": ["_scalar_"],
        "_nczarr_array": {"dimension_references": [], "scalar": 1, "storage": "chunked"},
        "_nczarr_attr": {"types": {"n": "<i2", "_nczarr_array": "|J0", "_nczarr_attr": "|J0"}},
    }
    scalar = annotated(sample()).nodes["/s"]
    assert (scalar.shape, scalar.chunk_shape) == ((1,), (1,))


@pytest.mark.parametrize(
    ("dialect", "name", "annotation"),
    [
        ("nczarr-4.9.1", "_nczarr_array", {"dimrefs": [], "scalar": 1, "storage": "chunked"}),
        ("nczarr-4.8.1", "_NCZARR_ARRAY", {"dimrefs": [], "storage": "scalar"}),
    ],
)
def test_scalar_annotations_in_old_layouts_equal_those_of_netcdf_c(dialect, name, annotation):
    assert annotated(sample(), dialect=dialect).nodes["/s"].members == {name: annotation}


def test_v3_annotations_follow_appendix_e_of_nczarr_spec():
    top = attributes_of("3", "nczarr", "/")
    assert top["_nczarr_superblock"] == {"version": "3.0.0", "format": 3}
    assert top["_nczarr_group"] == {
        "dimensions": [
            {"name": "t", "size": 3, "unlimited": 1},
            {"name": "x", "size": 2, "unlimited": 0},
        ],
        "arrays": ["s", "v"],
        "subgroups": ["g"],
    }
    assert attributes_of("3", "nczarr", "/s") == {
        "n": 7,
        "_nczarr_array": {"dimension_references": []},
        "_nczarr_attrs": {
            "attribute_types": [
                {"name": "n", "configuration": {"type": "int16"}},
                {"name": "_nczarr_array", "configuration": {"type": "json"}},
                {"name": "_nczarr_attrs", "configuration": {"type": "json"}},
            ]
        },
    }
    nodes = annotated(sample(), zarr_format="3").nodes
    assert (nodes["/v"].dimension_names, nodes["/s"].shape) == (("t", "x"), ())


def test_universal_layout_has_scalar_dimension_for_netcdf_c():
    nodes = annotated(sample(), dialect="universal").nodes
    assert nodes["/"].sidecars[".nczgroup"]["dims"] == {"t": 3, "x": 2, "_scalar_": 1}
    assert nodes["/s"].sidecars[".nczarray"]["dimrefs"] == ["/_scalar_"]
    assert nodes["/s"].attributes["_nczarr_array"]["dimension_references"] == []


def test_universal_layout_extends_newest_layout_with_additional_objects():
    """Metadata that later releases would misread is stored in separate objects."""
    nodes = annotated(sample(), dialect="universal").nodes
    newest = annotated(sample()).nodes
    for path, node in nodes.items():
        assert node.attributes == newest[path].attributes
    assert nodes["/"].members == {"_nczarr_superblock": {"version": "2.0.0"}}
    assert not any(node.members for path, node in nodes.items() if path != "/")
    assert nodes["/v"].sidecars[".nczattr"] == {"types": {"_FillValue": "<f4", "valid": "<i2"}}


def test_array_dimensions_attribute_is_written_except_in_v3():
    assert "_ARRAY_DIMENSIONS" not in attributes_of("2", "nczarr", array_dimensions=False)
    assert "_ARRAY_DIMENSIONS" not in attributes_of("3", "zarr")
    assert attributes_of("2", "zarr")["_ARRAY_DIMENSIONS"] == ["t", "x"]
    assert attributes_of("3-draft", "zarr")["_ARRAY_DIMENSIONS"] == ["t", "x"]


TEXTS = [
    ("2", "nczarr", "char", ">S1", np.bytes_(b"5")),
    ("2", "universal", "char", "|S1", np.bytes_(b"5")),
    ("2", "zarr", "char", "|S1", np.bytes_(b"5")),
    ("2", "nczarr", "string", "|S6", np.bytes_(b"5")),
    ("3", "nczarr", "char", "uint8", np.uint8(53)),
    ("3", "zarr", "char", None, np.bytes_(b"5")),
    ("3", "nczarr", "string", "r48", np.void(b"5\0\0\0\0\0")),
]


@pytest.mark.parametrize(("zarr_format", "dialect", "kind", "type_name", "fill"), TEXTS)
def test_character_and_string_types_depend_on_version_and_dialect(
    zarr_format, dialect, kind, type_name, fill
):
    node = array("/c", (), "|S1" if kind == "char" else "|S6", fill_value=np.bytes_(b"5"))
    declared = {"_FillValue": np.bytes_(b"5")}
    variable = Variable(path="/c", node=node, attributes=declared, kind=kind)
    stored = annotated(Group(variables={"c": variable}), zarr_format=zarr_format, dialect=dialect)
    assert (stored.nodes["/c"].type_name, stored.nodes["/c"].fill_value) == (type_name, fill)
    root = interpret(stored).variables["c"]
    assert (root.attributes, root.node.dtype) == (declared, node.dtype)
    assert root.kind == (kind if dialect != "zarr" else "other")


@pytest.mark.parametrize("zarr_format", ["1", "2", "3"])
def test_plain_zarr_keeps_fill_values_of_types_unsupported_by_netcdf(zarr_format):
    for fill in (np.complex128(1 + 2j), np.bool_(True), np.bytes_(b"abc")):
        node = array("/c", (), fill.dtype.str, fill_value=fill)
        variable = Variable(path="/c", node=node, attributes={"_FillValue": fill}, kind="other")
        stored = annotated(
            Group(variables={"c": variable}), zarr_format=zarr_format, dialect="zarr"
        )
        assert interpret(stored).variables["c"].attributes == {"_FillValue": fill}


@pytest.mark.parametrize(
    ("zarr_format", "dialect"),
    [("1", "nczarr"), ("3", "universal"), ("2", "nczarr-4.8.0"), ("2", "x")],
)
def test_dialect_not_available_in_zarr_version_is_rejected(zarr_format, dialect):
    with pytest.raises(UnsupportedError, match="expected zarr"):
        annotated(Group(), zarr_format=zarr_format, dialect=dialect)


def test_error_for_unstorable_attribute_includes_attribute_name():
    with pytest.raises(UnsupportedError) as caught:
        annotated(replace(sample(), attributes={"when": np.datetime64("2000")}))
    assert (caught.value.place, caught.value.variable) == ("attribute when", "/")


def test_removing_stale_annotations_keeps_unknown_metadata_members():
    node = group(members={"kept": 1, "_NCZARR_GROUP": {}}, attributes={"_ARRAY_DIMENSIONS": ["x"]})
    root = interpret(hierarchy(node))
    assert annotated(root, dialect="zarr").nodes["/"] == group(members={"kept": 1})


def test_annotating_group_with_missing_variable_raises_file_not_found_error():
    root = interpret(
        hierarchy(group(attributes={"_nczarr_group": {"arrays": ["gone"], "groups": []}}))
    )
    with pytest.raises(FileNotFoundError, match="gone"):
        annotated(root)


@pytest.mark.parametrize(("zarr_format", "dialect"), [("2", "nczarr"), ("3", "nczarr")])
@pytest.mark.parametrize("fill", [b"none", b""], ids=["text", "empty"])
def test_string_attributes_and_fill_values_are_recorded_as_strings(zarr_format, dialect, fill):
    node = array("/v", (2,), "S4", fill_value=np.bytes_(fill))
    attributes = {"_FillValue": np.bytes_(fill), "one": ["a"], "two": ["a", "b"], "text": "a"}
    strings = Variable(
        path="/v", dimensions=(SIZES["x"],), node=node, attributes=attributes, kind="string"
    )
    root = Group(dimensions={"x": SIZES["x"]}, variables={"v": strings})
    stored = annotated(root, zarr_format=zarr_format, dialect=dialect)
    types = find_types(stored.nodes["/v"])
    recorded = {name: attribute_type(types[name]) for name in attributes}
    assert recorded == {"_FillValue": "string", "one": "string", "two": "string", "text": "char"}
    assert interpret(stored).variables["v"].attributes == attributes


def test_shadowed_dimension_is_referenced_by_full_path():
    near, far = Dimension("x", "/g/x", 3), Dimension("x", "/x", 5)
    both = Variable(path="/g/v", dimensions=(near, far), node=array("/g/v", (3, 5), "<i4"))
    below = Group(path="/g", dimensions={"x": near}, variables={"v": both})
    root = Group(dimensions={"x": far}, groups={"g": below})
    for dialect in ("nczarr", "zarr"):
        node = annotated(root, dialect=dialect).nodes["/g/v"]
        assert node.attributes["_ARRAY_DIMENSIONS"] == ["x", "/x"]
    dataset = interpret(annotated(root))
    assert dataset.groups["g"].variables["v"].dimensions == (near, far)
