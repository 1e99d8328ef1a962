"""Hierarchies in the layout of every netcdf-c release are interpreted as netCDF groups.

The hierarchies are built from plain values, without documents.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nodes import array, group, hierarchy
from xr_nczarr.errors import MetadataError, NotFoundError, UnsupportedError
from xr_nczarr.model import BrokenNode, CodecSpec
from xr_nczarr.netcdf import Dimension, interpret
from xr_nczarr.netcdf.annotations import SIDECARS, listed_children

TIME, X = Dimension("t", "/t", 3, True), Dimension("x", "/x", 2)


def root(dimensions=None, arrays=(), groups=(), **attributes):
    annotation = {"dimensions": dimensions or {}, "arrays": list(arrays), "groups": list(groups)}
    return group(attributes={"_nczarr_superblock": {}, "_nczarr_group": annotation, **attributes})


def references(*paths, **members):
    return {"_nczarr_array": {"dimension_references": list(paths), **members}}


def only(result):
    (variable,) = result.variables.values()
    return variable


def paths(variable):
    return [dimension.path for dimension in variable.dimensions]


LOWER = {"dims": {"t": 3, "x": 2}, "vars": ["v"], "groups": []}
SHORT = {"dimrefs": ["/t", "/x"], "storage": "chunked"}
LONG = {"dimension_references": ["/t", "/x"], "storage": "chunked"}
SIZES = {"t": {"size": 3, "unlimited": 1}, "x": 2}
V3_TYPES = [{"name": "n", "configuration": {"type": "int16"}}, {"name": "other"}, 5]
V3_DIMENSIONS = [{"name": "t", "size": 3, "unlimited": 1}, {"name": "x", "size": 2}]
VINTAGES = {
    "nczarr-4.8.0": (
        group(sidecars={".nczarr": {"zarr_format": 2}, ".nczgroup": LOWER}),
        {"sidecars": {".nczvar": SHORT, ".nczattr": {"types": {"n": "3"}}}, "attributes": {}},
    ),
    "nczarr-4.8.1": (
        group(members={"_NCZARR_SUPERBLOCK": {"version": "2.0.0"}, "_NCZARR_GROUP": LOWER}),
        {
            "members": {"_NCZARR_ARRAY": SHORT},
            "attributes": {"_NCZARR_ATTR": {"types": {"n": "<i2"}}},
        },
    ),
    "nczarr-4.9.1": (
        group(members={"_nczarr_superblock": {}, "_nczarr_group": LOWER}),
        {
            "members": {"_nczarr_array": SHORT},
            "attributes": {"_nczarr_attr": {"types": {"n": "<i2"}}},
        },
    ),
    "nczarr-4.9.3": (
        root(SIZES, "v", _nczarr_attr={"types": {}}),
        {"attributes": {"_nczarr_array": LONG, "_nczarr_attr": {"types": {"n": "<i2"}}}},
    ),
    "nczarr-preview": (
        root(SIZES, "v", _nczarr_attrs={"types": {}}),
        {"attributes": {"_nczarr_array": LONG, "_nczarr_attrs": {"types": {"n": "<i2"}}}},
    ),
}
FORMAT_3 = {
    "appendix E": (
        group(
            attributes={
                "_nczarr_group": {"dimensions": V3_DIMENSIONS, "arrays": ["v"], "subgroups": []},
                "_nczarr_attrs": {"attribute_types": []},
            }
        ),
        {"attributes": {"_nczarr_array": LONG, "_nczarr_attrs": {"attribute_types": V3_TYPES}}},
    ),
    "development branch": (
        root(SIZES, "v", _nczarr_attrs={"attribute_types": {}}),
        {
            "attributes": {
                "_nczarr_array": LONG,
                "_nczarr_attrs": {"attribute_types": {"n": "int16"}},
            }
        },
    ),
}


def assert_interpreted(top, fields, dialect, zarr_format):
    node = array("/v", (3, 2), **{**fields, "attributes": {"n": [5], **fields["attributes"]}})
    dataset = interpret(hierarchy(top, node, zarr_format=zarr_format))
    knows_unlimited = dialect in ("nczarr-4.9.3", "nczarr-preview")
    assert dataset.dialect == dialect
    assert dataset.dimensions == {"t": Dimension("t", "/t", 3, knows_unlimited), "x": X}
    variable = only(dataset)
    assert variable.error is None
    assert paths(variable) == ["/t", "/x"]
    assert list(variable.attributes) == ["n"]
    assert type(variable.attributes["n"]) is np.int16
    assert (dataset.attributes, dataset.reports, dataset.error) == ({}, [], None)
    assert listed_children(top) == {"v": "array"}


# Regressions D8, D9, D11
@pytest.mark.parametrize("dialect", VINTAGES)
def test_metadata_from_every_netcdf_c_release_is_interpreted(dialect):
    assert_interpreted(*VINTAGES[dialect], dialect, "2")


@pytest.mark.parametrize("form", FORMAT_3)
def test_nczarr_v3_preview_metadata_is_interpreted(form):
    assert_interpreted(*FORMAT_3[form], "nczarr-preview", "3")


def test_newest_annotation_takes_precedence():
    old = {"_NCZARR_GROUP": {"dims": {"t": 9}, "vars": [], "groups": []}}
    both = group(attributes=root(SIZES).attributes, members=old)
    assert interpret(hierarchy(both)).dimensions["t"] == TIME


def test_separate_metadata_objects_have_netcdf_c_names():
    assert SIDECARS == (".nczarr", ".nczgroup", ".nczvar", ".nczattr", ".nczarray")


# Regression D13
def test_full_names_distinguish_dimensions_of_group_and_parent():
    child = group("/g", {"_nczarr_group": {"dimensions": {"x": 5}, "arrays": ["v"], "groups": []}})
    dataset = interpret(
        hierarchy(
            root(SIZES, groups=["g"]),
            child,
            array("/g/v", (5, 2), attributes=references("/g/x", "/x")),
        )
    )
    assert [item.size for item in only(dataset.groups["g"]).dimensions] == [5, 2]


# Regression D12
def test_variables_in_subgroups_can_use_root_dimensions():
    nodes = [root({"x": 2}, groups=["g"]), group("/g", members={"_nczarr_group": LOWER})]
    dataset = interpret(
        hierarchy(*nodes, array("/g/v", (2,), members={"_nczarr_array": {"dimrefs": ["/x"]}}))
    )
    assert only(dataset.groups["g"]).dimensions == (X,)


SCALARS = {
    "storage": {"shape": (1,), "members": {"_NCZARR_ARRAY": {"dimrefs": [], "storage": "scalar"}}},
    "flag": {"shape": (1,), "attributes": references(scalar=1, storage="chunked")},
    "_scalar_": {"shape": (1,), "attributes": {"_ARRAY_DIMENSIONS": ["_scalar_"]}},
    "no dimensions": {"shape": (1,), "attributes": {"_ARRAY_DIMENSIONS": []}},
    "reference": {"shape": (1,), "attributes": references("/_scalar_")},
    "no shape, reference": {"shape": (), "attributes": references("/_scalar_", scalar=1)},
    "no shape": {"shape": ()},
    "no shape, named": {"shape": (), "attributes": {"_ARRAY_DIMENSIONS": ["_scalar_"]}},
}


# Regression D6
@pytest.mark.parametrize("spelling", SCALARS)
def test_scalars_have_no_dimensions_in_any_layout(spelling):
    dataset = interpret(hierarchy(group(), array("/v", **SCALARS[spelling])))
    variable = only(dataset)
    assert (variable.shape, variable.error, dataset.dimensions) == ((), None, {})


CHARACTERS = [
    ("<U1", "2", {"members": {"_NCZARR_ARRAY": {"dimrefs": ["/x"]}}, "fill_value": np.str_("5")}),
    (">S1", "2", {"attributes": references("/x"), "fill_value": np.bytes_(b"5")}),
    (">S1", "2", {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "fill_value": np.bytes_(b"5")}),
    ("uint8", "3", {"attributes": references("/x", type_alias="char"), "fill_value": np.uint8(53)}),
    (
        "uint8",
        "3",
        {"attributes": references("/x", nczarr_type="char"), "fill_value": np.uint8(53)},
    ),
]


# Regressions D5, D7
@pytest.mark.parametrize(("type_name", "zarr_format", "fields"), CHARACTERS)
def test_characters_from_every_netcdf_c_release_have_dtype_s1(type_name, zarr_format, fields):
    nodes = root({"x": 2}), array("/v", (2,), type_name, **fields)
    variable = only(interpret(hierarchy(*nodes, zarr_format=zarr_format)))
    assert (variable.kind, variable.node.dtype, variable.error) == ("char", np.dtype("S1"), None)
    assert variable.fill_value == b"5"


def test_ucs4_characters_in_plain_zarr_keep_their_dtype():
    variable = only(interpret(hierarchy(group(), array("/v", (2,), "<U1"))))
    assert variable.node.dtype == np.dtype("<U1")


@pytest.mark.parametrize("type_name", ["|S5", "|S1", "<S5"])
def test_fixed_width_bytes_are_text_except_in_plain_zarr(type_name):
    annotated = array("/v", (2,), type_name, references("/x"))
    plain = array("/v", (2,), type_name, {"_ARRAY_DIMENSIONS": ["x"]})
    netcdf_pure = group(attributes={"_NCProperties": "version=2,netcdf=4.10.1,nczarr=2.0.0"})
    expected = "char" if type_name == "<S1" else "string"
    assert only(interpret(hierarchy(root({"x": 2}), annotated))).kind == expected
    assert only(interpret(hierarchy(netcdf_pure, plain))).kind == expected
    assert only(interpret(hierarchy(group(), plain))).kind == "other"


def test_v3_raw_bytes_with_string_alias_are_read_as_strings():
    node = array("/v", (2,), "r40", references("/x", type_alias="string"), dtype=np.dtype("V5"))
    variable = only(interpret(hierarchy(root({"x": 2}), node, zarr_format="3")))
    assert (variable.kind, variable.node.dtype) == ("string", np.dtype("S5"))


@pytest.mark.parametrize(
    ("alias", "type_name"), [("char", "<f8"), ("char", "|S5"), ("char", "<u2"), ("string", "<f8")]
)
def test_variable_with_contradictory_type_alias_is_marked_as_broken(alias, type_name):
    node = array("/v", (2,), type_name, references("/x", type_alias=alias))
    assert isinstance(only(interpret(hierarchy(root({"x": 2}), node))).error, MetadataError)


# Regression D3
@pytest.mark.parametrize(
    ("type_name", "size"), [("<f4", 4), ("<f8", 8), ("|S5", 8), (">S1", 1), ("<U1", 1), ("<i2", 2)]
)
@pytest.mark.parametrize("stored", [0, "0", 7])
def test_shuffle_element_size_is_corrected_in_nczarr(type_name, size, stored):
    specs = (
        CodecSpec("shuffle", {"elementsize": stored}, "filters"),
        CodecSpec("zlib", {"level": 1}),
    )
    node = array("/v", (2,), type_name, references("/x"), codecs=specs)
    assert only(interpret(hierarchy(root({"x": 2}), node))).node.codecs == (
        CodecSpec("shuffle", {"elementsize": size}, "filters"),
        specs[1],
    )


def test_shuffle_element_size_is_left_unchanged_in_plain_zarr():
    specs = (CodecSpec("shuffle", {"elementsize": 2}, "filters"),)
    node = array("/v", (2,), "<f8", codecs=specs)
    assert only(interpret(hierarchy(group(), node))).node is node


# Dimensions without annotations


# Regression D10
def test_arrays_without_dimension_names_share_anonymous_dimensions():
    nodes = group(), group("/g"), array("/g/b", (4,)), array("/a", (3, 4))
    dataset = interpret(hierarchy(*nodes))
    assert list(dataset.dimensions) == ["_Anonymous_Dimension_3", "_Anonymous_Dimension_4"]
    assert paths(dataset.groups["g"].variables["b"]) == ["/_Anonymous_Dimension_4"]
    assert dataset.dialect == "zarr"


def test_v3_dimensions_with_null_names_are_anonymous():
    node = array("/v", (3, 4), dimension_names=("x", None))
    variable = only(interpret(hierarchy(group(), node, zarr_format="3")))
    assert paths(variable) == ["/x", "/_Anonymous_Dimension_4"]


def test_dimension_names_resolve_to_parent_dimension_of_same_size():
    names = {"_ARRAY_DIMENSIONS": ["x", "y"]}
    nodes = (
        group(),
        group("/g"),
        array("/g/v", (2, 3), attributes=names),
        array("/w", (2, 4), attributes=names),
    )
    dataset = interpret(hierarchy(*nodes))
    assert paths(only(dataset.groups["g"])) == ["/x", "/g/y"]
    assert paths(dataset.variables["w"]) == ["/x", "/y"]


def test_variable_that_contradicts_dimension_size_is_marked_as_broken():
    first, second = (
        array(f"/{name}", (size,), attributes={"_ARRAY_DIMENSIONS": ["x"]})
        for name, size in (("a", 2), ("b", 3))
    )
    dataset = interpret(hierarchy(group(), first, second))
    assert dataset.variables["a"].error is None
    assert str(dataset.variables["b"].error) == (
        "b/.zattrs, _ARRAY_DIMENSIONS: the array has 3 elements along dimension /x; expected 2 "
        "(variable /b). Pass drop_variables to exclude all arrays with 3 elements along this "
        "dimension, or all arrays with 2 elements"
    )
    alone = interpret(hierarchy(group(), first, second), dropped=["a"])
    assert alone.variables["b"].error is None


@pytest.mark.parametrize(
    "names",
    [["x"], ["x", "y", "z"], "xy", {"x": 1}, ["x", 5], 7],
    ids=["too few", "too many", "text", "an object", "a number as a name", "a number"],
)
def test_variable_with_invalid_array_dimensions_is_marked_as_broken(names):
    node = array("/v", (2, 3), attributes={"_ARRAY_DIMENSIONS": names, "units": "m"})
    variable = only(interpret(hierarchy(group(), node)))
    assert variable.error.place == "_ARRAY_DIMENSIONS"
    assert variable.attributes == {"units": "m"}


def test_array_with_invalid_nczarr_metadata_keeps_its_dtype():
    node = array("/v", (3,), attributes={"_nczarr_array": 1})
    variable = only(interpret(hierarchy(root(SIZES, "v"), node)))
    assert variable.error.place == "_nczarr_array"
    assert variable.node.dtype == node.dtype


# Sizes


# Regression D21
@pytest.mark.parametrize(
    ("size", "word"),
    [(2, "padded"), (5, "truncated"), (0, "padded")],
    ids=["shorter", "longer", "empty"],
)
def test_array_is_padded_or_truncated_to_size_of_unlimited_dimension(size, word):
    dataset = interpret(
        hierarchy(root(SIZES, "v"), array("/v", (size,), attributes=references("/t")))
    )
    assert (only(dataset).shape, only(dataset).error) == ((3,), None)
    assert word in dataset.reports[0]


# Regression D21
@pytest.mark.parametrize("size", [1, 3])
def test_only_variables_that_contradict_fixed_dimension_are_marked_as_broken(size):
    bad, good = (
        array(f"/{name}", (n,), attributes=references("/x")) for name, n in (("b", size), ("a", 2))
    )
    dataset = interpret(hierarchy(root(SIZES, "ab"), bad, good))
    assert f"{size} elements along dimension /x; expected 2" in str(dataset.variables["b"].error)
    assert dataset.variables["a"].error is None


# Regression D30
def test_unlimited_dimension_can_be_empty():
    sizes = {"t": {"size": 0, "unlimited": 1}}
    variable = only(
        interpret(hierarchy(root(sizes, "v"), array("/v", (0,), attributes=references("/t"))))
    )
    assert (variable.shape, variable.error, variable.dimensions[0].unlimited) == ((0,), None, True)


@pytest.mark.parametrize(
    "wrong",
    [["/nope"], ["/g/x"], ["/"], ["/t", "/x"], []],
    ids=["no dimension", "no group", "the root", "too many", "none"],
)
def test_variable_with_invalid_dimension_references_is_marked_as_broken(wrong):
    dataset = interpret(
        hierarchy(root(SIZES, "v"), array("/v", (3,), attributes=references(*wrong)))
    )
    assert only(dataset).error.place == "_nczarr_array.dimension_references"


def test_dimensions_of_unopened_groups_are_inferred_from_arrays():
    part = group(attributes={"_nczarr_group": {"dimensions": {"y": 2}, "arrays": [], "groups": []}})
    child = array("/v", (3, 2), attributes=references("/x", "/part/y"))
    dataset = interpret(hierarchy(part, child, array("/w", (3,), attributes=references("/x"))))
    v, w = dataset.variables.values()
    assert (v.error, w.error) == (None, None)
    assert v.dimensions == (Dimension("x", "/x", 3), Dimension("y", "/y", 2))
    assert w.dimensions == v.dimensions[:1]
    (note,) = (note for note in dataset.reports if "defined" in note)
    assert note.startswith("dimensions not defined in the opened groups: /x")


# Regression D60
def test_dimensions_are_restored_if_root_annotation_is_missing():
    dataset = interpret(hierarchy(group(), array("/v", (3,), attributes=references("/t"))))
    assert dataset.dimensions == {"t": Dimension("t", "/t", 3)}
    assert dataset.dialect == "nczarr-4.9.3"
    assert "/t" in dataset.reports[0]


@pytest.mark.parametrize("name", ["_Anonymous_Dim_3", "_zdim_3", ".zdim_3"])
def test_anonymous_dimensions_from_older_netcdf_c_releases_need_no_definition(name):
    dataset = interpret(
        hierarchy(root(SIZES, "v"), array("/v", (3,), attributes=references(f"/{name}")))
    )
    assert (only(dataset).shape, only(dataset).error) == ((3,), None)


# Lists and damage


# Regression D21
def test_listed_but_missing_array_becomes_broken_variable():
    dataset = interpret(hierarchy(root(arrays=["v"])))
    assert isinstance(dataset.variables["v"].error, NotFoundError)
    assert "/v" in dataset.reports[0]


def test_listed_but_missing_group_is_unreadable():
    dataset = interpret(hierarchy(root(groups=["g"])))
    assert isinstance(dataset.groups["g"].error, NotFoundError)
    assert dataset.groups["g"].is_unreadable
    assert "/g" in str(dataset.groups["g"].error)


def test_unlisted_child_is_kept_and_reported():
    dataset = interpret(hierarchy(root(), group("/g"), array("/v")))
    assert (list(dataset.variables), list(dataset.groups)) == (["v"], ["g"])
    assert (len(dataset.warnings), dataset.reports) == (2, [])


def test_group_listed_as_its_own_child_is_unreadable():
    nodes = root(groups=["g"]), group("/g", {"_nczarr_group": {"arrays": [], "groups": ["g"]}})
    assert interpret(hierarchy(*nodes)).groups["g"].groups["g"].is_unreadable


# Regression D23
def test_unparsable_node_becomes_broken_variable():
    error = UnsupportedError("found <U2")
    node = BrokenNode(
        path="/v",
        error=error,
        shape=(3,),
        attributes=array("/v", attributes={"u": "m", **references("/t")}).attributes,
    )
    variable = only(interpret(hierarchy(root(SIZES, "v"), node)))
    assert variable.error is error
    assert (variable.shape, variable.attributes, variable.node) == ((3,), {"u": "m"}, None)


def test_broken_group_keeps_its_children():
    broken = BrokenNode(path="/g", error=MetadataError("damaged"))
    dataset = interpret(hierarchy(group(), broken, array("/g/v")))
    assert dataset.groups["g"].error is broken.error
    assert list(dataset.groups["g"].variables) == ["v"]


def test_missing_parent_groups_are_inferred_except_under_arrays():
    below = group("/a/b"), array("/a/b/c"), array("/a/d")
    dataset = interpret(hierarchy(array("/a"), *below, array("/g/h/v", (2,))))
    assert list(dataset.variables) == ["a"]
    assert list(dataset.groups) == ["g"]
    assert list(dataset.groups["g"].groups["h"].variables) == ["v"]
    assert len(dataset.reports) == 3


def test_plain_zarr_dimension_name_can_contain_slash():
    node = array("/v", (2,), attributes={"_ARRAY_DIMENSIONS": ["a/b"]})
    assert only(interpret(hierarchy(group(), node))).dimensions[0].name == "a/b"


def test_root_array_becomes_variable_named_data():
    assert list(interpret(hierarchy(array("/", (2,)))).variables) == ["data"]


ANY_JSON = [None, True, 5, -1, 1 << 70, 0.5, "text", [], [[]], [None], {}, {"x": {}}, {"": ""}]


@pytest.mark.parametrize("value", ANY_JSON, ids=repr)
@pytest.mark.parametrize("member", ["dimension_references", "type_alias", None])
def test_arbitrary_json_in_array_annotation_affects_only_its_variable(member, value):
    annotation = value if member is None else {"dimension_references": ["/x"], member: value}
    bad = array("/b", (2,), attributes={"_nczarr_array": annotation})
    dataset = interpret(
        hierarchy(root({"x": 2}), bad, array("/a", (2,), attributes=references("/x")))
    )
    assert dataset.variables["a"].error is None
    error = dataset.variables["b"].error
    assert error is None or (isinstance(error, MetadataError) and error.key == "b/.zattrs")


@pytest.mark.parametrize("value", ANY_JSON, ids=repr)
@pytest.mark.parametrize("member", ["dimensions", "arrays", "groups", "size", None])
def test_arbitrary_json_in_group_annotation_breaks_only_affected_variables(member, value):
    annotation = {"dimensions": {"x": 2}, "arrays": ["v"], "groups": [], member: value}
    if member == "size":
        annotation = {"dimensions": {"y": value, "z": {"size": value}, "x": 2}}
    top = group(attributes={"_nczarr_group": value if member is None else annotation})
    dataset = interpret(hierarchy(top, array("/v", (2,), attributes=references("/x"))))
    assert (dataset.variables["v"].error is None) == (dataset.dimensions.get("x") == X)
    assert dataset.error is None or (
        isinstance(dataset.error, MetadataError) and dataset.error.key == ".zattrs"
    )


@pytest.mark.parametrize("value", ANY_JSON, ids=repr)
@pytest.mark.parametrize("member", ["types", "attribute_types", "n", None])
def test_invalid_attribute_types_are_ignored(member, value):
    types = {"types": {"n": value}} if member == "n" else {member: value}
    attributes = {"n": 5, "_nczarr_attr": value if member is None else types}
    assert interpret(hierarchy(group(attributes=attributes))).attributes == {"n": np.int32(5)}


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = ["_nczarr_group", "_nczarr_array", "_nczarr_attr", "_nczarr_attrs", "_ARRAY_DIMENSIONS"]
INNER = ["dimensions", "arrays", "groups", "dimension_references", "types", "attribute_types"]
annotations = st.dictionaries(
    st.sampled_from([*KEYS, "_FillValue", "a"]),
    json | st.dictionaries(st.sampled_from(INNER), json),
)


@settings(deadline=None)
@given(
    annotations, annotations, st.sampled_from(["<i4", ">f8", "|S3", ">S1", "|b1", "<c16", "<M8[s]"])
)
def test_stores_with_arbitrary_json_annotations_are_interpreted(top, attributes, type_name):
    node = array("/v", (2,), type_name, attributes)
    for zarr_format in ("2", "3"):
        dataset = interpret(hierarchy(group(attributes=top), node, zarr_format=zarr_format))
        assert isinstance(dataset.variables["v"].error, MetadataError | None)


@pytest.mark.parametrize("names", [["a/b"], [".."], [""], ["a", 5], "ab", {"a": 1}])
def test_invalid_child_lists_are_ignored(names):
    assert (
        listed_children(group(attributes={"_nczarr_group": {"arrays": names, "groups": []}}))
        is None
    )


# Fill values


def filled(type_name, fill_value, attributes=(), *, top=(), zarr_format="2", **options):
    node = array(
        "/v",
        (2,),
        type_name,
        {"_ARRAY_DIMENSIONS": ["x"], **dict(attributes)},
        fill_value=fill_value,
    )
    nodes = hierarchy(group(attributes=top), node, zarr_format=zarr_format)
    return only(interpret(nodes, **options))


BY_NETCDF_C = {"_NCProperties": "version=2,netcdf=4.10.1,nczarr=2.0.0"}
ZEROS = [
    ("<i4", np.int32(0)),
    (">f8", np.float64(0)),
    ("<c8", np.complex64(0)),
    ("|b1", np.False_),
    ("|S3", np.bytes_(b"")),
    ("|S3", np.bytes_(b" ")),
    ("<U2", np.str_("")),
]
DEFAULT_FILLS = [
    ("|i1", np.int8(-127)),
    ("<i2", np.int16(-32767)),
    ("<i4", np.int32(-2147483647)),
    ("<f8", np.float64(9.96921e36)),
    ("<f4", np.float32(9.96921e36)),
]
OTHER_FILLS = [
    ("<i4", np.int32(-9)),
    ("<f8", np.float64("nan")),
    (">i2", np.int16(7)),
    ("<M8[ns]", np.datetime64(0, "ns")),
]


@pytest.mark.parametrize("zarr_format", ["1", "2"])
@pytest.mark.parametrize(("type_name", "fill"), [*ZEROS, *DEFAULT_FILLS, *OTHER_FILLS])
def test_plain_zarr_v2_fill_values_are_masked_by_default(type_name, fill, zarr_format):
    options = {"zarr_format": zarr_format}
    np.testing.assert_equal(filled(type_name, fill, **options).attributes, {"_FillValue": fill})
    options["use_zarr_fill_value_as_mask"] = False
    assert filled(type_name, fill, **options).attributes == {}


@pytest.mark.parametrize(("type_name", "fill"), [*ZEROS, *DEFAULT_FILLS, *OTHER_FILLS])
def test_v3_fill_values_are_not_masked_by_default(type_name, fill):
    assert filled(type_name, fill, zarr_format="3").attributes == {}
    options = {"zarr_format": "3", "use_zarr_fill_value_as_mask": True}
    np.testing.assert_equal(filled(type_name, fill, **options).attributes, {"_FillValue": fill})


# Regression D24
@pytest.mark.parametrize(("type_name", "fill"), DEFAULT_FILLS)
def test_default_fill_values_from_netcdf_c_are_not_masked(type_name, fill):
    assert "_FillValue" not in filled(type_name, fill, top=BY_NETCDF_C).attributes
    by_hdf5 = {"_NCProperties": "version=2,netcdf=4.9.0,hdf5=1.14.0"}  # kerchunk copies it
    assert filled(type_name, fill, top=by_hdf5).attributes == {"_FillValue": fill}


@pytest.mark.parametrize(("type_name", "fill"), OTHER_FILLS)
def test_non_default_fill_values_from_netcdf_c_are_masked(type_name, fill):
    result = filled(type_name, fill, top=BY_NETCDF_C).attributes
    np.testing.assert_equal(result, {"_FillValue": fill})


# Regression D25
@pytest.mark.parametrize(("type_name", "fill"), ZEROS)
def test_zero_is_not_masked_in_reference_set_by_default(type_name, fill):
    assert filled(type_name, fill, zero_masks=False).attributes == {}
    options = {"zero_masks": False, "use_zarr_fill_value_as_mask": True}
    assert filled(type_name, fill, **options).attributes == {"_FillValue": fill}


@pytest.mark.parametrize(("type_name", "fill"), [*DEFAULT_FILLS, *OTHER_FILLS])
def test_nonzero_fill_values_are_masked_in_reference_set(type_name, fill):
    result = filled(type_name, fill, zero_masks=False).attributes
    np.testing.assert_equal(result, {"_FillValue": fill})


@pytest.mark.parametrize("dtype", ["V3", "i2,f4"])
def test_raw_bytes_and_structured_values_are_not_masked(dtype):
    node = array("/v", (2,), fill_value=np.zeros((), dtype)[()], dtype=np.dtype(dtype))
    assert only(interpret(hierarchy(group(), node))).attributes == {}


def test_fill_value_attribute_takes_precedence_over_zarr_fill_value():
    declared = filled("<i4", np.int32(7), {"_FillValue": 0}).attributes["_FillValue"]
    assert (declared, type(declared)) == (0, np.int32)


def test_only_declared_fill_values_are_masked_in_nczarr():
    node = array("/v", (2,), "<i4", references("/x"), fill_value=np.int32(-9))
    dataset = interpret(hierarchy(root({"x": 2}), node), use_zarr_fill_value_as_mask=True)
    assert (only(dataset).attributes, only(dataset).fill_value) == ({}, -9)


# Regression D19
def test_rounded_default_fill_value_is_corrected():
    attributes = {**references("/x"), "_FillValue": 9.96921e36}
    node = array("/v", (2,), "<f8", attributes, fill_value=np.float64(9.96921e36))
    variable = only(interpret(hierarchy(root({"x": 2}), node)))
    assert variable.fill_value == variable.attributes["_FillValue"] == 9.969209968386869e36
    assert np.float32(9.96921e36) == np.float32(9.969209968386869e36)


# Regression D20
@pytest.mark.parametrize(
    ("type_name", "expected"),
    [("<i1", 0), (">i2", 0), ("<u8", 0), ("<f8", 0), ("<c8", 0), ("|S5", b""), ("<U3", ""),
     ("|b1", False)],
)  # fmt: skip
def test_null_fill_values_are_read_as_zero(type_name, expected):
    assert filled(type_name, None).fill_value == expected
    assert filled(type_name, None).node.fill_value is None


# Regression D20
def test_null_fill_value_of_variable_length_bytes_is_read_as_empty_bytes():
    node = array("/v", (2,), "|O", {"_ARRAY_DIMENSIONS": ["x"]}, fill_value=None)
    node = replace(node, codecs=(CodecSpec("vlen-bytes"),))
    assert only(interpret(hierarchy(group(), node))).fill_value == b""


@pytest.mark.parametrize(
    ("type_name", "zarr_format", "value", "literal", "expected"),
    [
        (">S1", "2", 5, "5", np.bytes_(b"5")),
        (">S1", "2", "x", '"x"', np.bytes_(b"x")),
        ("<f4", "2", "NaN", '"NaN"', np.float32("nan")),
        ("<f8", "2", "-Infinity", '"-Infinity"', np.float64("-inf")),
        ("<i2", "2", [-9], "[-9]", np.int16(-9)),
        ("<f8", "3", "AAAAAAAA+H8=", "", np.float64("nan")),
        (">f4", "3", "AAAAAAAA8D8=", "", np.float32(1)),
        ("<f2", "2", -9.0, "", np.float16(-9)),
        (">f2", "3", "AAAAAAAAIsA=", "", np.float16(-9)),
        ("<f2", "3", "AAAAAAAA8H8=", "", np.float16("inf")),
        ("<c16", "3", ["AAAAAAAA8D8=", "AAAAAAAAAAA="], "", np.complex128(1)),
        ("|S3", "3", "YWI=", "", np.bytes_(b"ab")),
    ],
)
def test_fill_value_attribute_has_variable_dtype(type_name, zarr_format, value, literal, expected):
    node = array("/v", (1,), type_name, {"_FillValue": value}, literals={"_FillValue": literal})
    result = only(interpret(hierarchy(group(), node, zarr_format=zarr_format))).attributes[
        "_FillValue"
    ]
    np.testing.assert_equal(result, expected)
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("type_name", "value"), [("<f2", 65520.0), ("<f4", float(2**128 - 2**103))]
)
def test_fill_value_that_rounds_to_infinity_is_reported(type_name, value):
    dataset = interpret(hierarchy(group(), array("/v", (1,), type_name, {"_FillValue": value})))
    assert "_FillValue" in dataset.reports[0]


@pytest.mark.parametrize("value", [300, 0.5, "text", [1, 2], None, {"a": 1}], ids=repr)
def test_fill_value_attribute_of_wrong_type_is_kept_and_reported(value):
    dataset = interpret(hierarchy(group(), array("/v", (1,), "|u1", {"_FillValue": value})))
    assert "_FillValue" in only(dataset).attributes
    assert "_FillValue" in dataset.reports[0]
