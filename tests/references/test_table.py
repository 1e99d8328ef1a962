"""References in large documents are scanned into columns without loss."""

import json
import pickle
import random
import tracemalloc

import numpy as np
import pytest

from xr_nczarr.errors import ReferenceSetError
from xr_nczarr.references import parse
from xr_nczarr.references.parse import parse_references, tabulate
from xr_nczarr.storage.store import Address


def regular(array="t", shape=(40, 5, 10), separator=".", files=7):
    refs = {f"{array}/.zarray": '{"shape": "[\\"escaped\\"]"}'}
    number = 0
    for i in range(shape[0]):
        for j in range(shape[1]):
            for k in range(shape[2]):
                key = f"{array}/" + separator.join(map(str, (i, j, k)))
                refs[key] = [f"s3://b/ü {i % files}.nc", number * 31, 31 + k]
                number += 1
    return refs


def one_by_one(refs):
    """Return the references stored in columns, built from a dictionary instead of a document."""
    return dict(tabulate(dict(refs)).items())


SETS = {
    "one array": regular(),
    "two arrays": regular() | regular("g/u", separator="/"),
    "chunks of version 3": regular("a/c", separator="/"),
    "at the root": {key[2:]: value for key, value in regular().items()},
    "one dimension": {f"t/{i}": ["u", i, 1] for i in range(3000)},
    "backwards": dict(reversed(regular().items())),
    "interleaved": {
        f"v{v}/{i}.0": ["u", i, v] for i in range(400) for v in range(8) if (i * v) % 11
    },
    "interleaved with others": {
        key: value
        for i in range(3000)
        for key, value in (
            [(f"t/{i}", ["u", i, 1])] + ([(f"x{i}/.zattrs", "{}")] if i % 500 == 7 else [])
        )
    },
    "shuffled": dict(random.Random(1).sample(list(regular().items()), 2001)),
    "no index": {f"name{i}x": ["u", i, 1] for i in range(3000)},
    "numbers behind names": {f"gen_key{i}": ["u", i, 1] for i in range(3000)},
    "leading zeros": {f"t/{i:04d}": ["u", i, 1] for i in range(3000)},
    "a zero too many": {f"t/{i}" if i != 9 else "t/00": ["u", i, 1] for i in range(3000)},
    "a number too few": {f"t/{i}.{i if i < 299 else ''}": ["u", i, 1] for i in range(300)}
    | {"x": "long " * 20_000},
    "gaps": {f"t/{i * i}.{i}": ["u", i, 1] for i in range(3000)},
    "several ranks": {f"t/{'.'.join('1' * (i % 4 + 1))}{i}": ["u", i, 1] for i in range(3000)},
    "empty parts": {f"t/{i}..{i}": ["u", i, 1] for i in range(3000)},
    "large numbers": {f"t/{i}": ["u", 2**61 + i, 2**40 + i] for i in range(3000)},
    "whole objects": {f"t/{i}": [f"u{i}"] for i in range(3000)},
    "mixed": {f"t/{i}": ["u"] if i % 3 else ["u", i, 0] for i in range(3000)},
    "inline among them": {f"t/{i}": ["u", i, 1] if i % 300 else "text, " for i in range(3000)},
    "long URLs": {f"t/{i}": ["u" * 3000, i, 1] for i in range(300)},
    "looks like a member": {
        "a": 'x, "',
        **{f"t/{i}": ["u", i, 1] for i in range(3000)},
        "b": '"t/5": ["u", 1, 2], "',
        "c": ", ",
    },
}

LAYOUTS = {
    "json": {"ensure_ascii": False},
    "compact": {"ensure_ascii": False, "separators": (",", ":")},
    "indented": {"indent": 1},
    "spaced": {"separators": (" ,\t", "\r\n: ")},
    "escaped": {"ensure_ascii": True},
    "slashes": {"ensure_ascii": False, "separators": (",", ":")},
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scanning_document_yields_same_references_as_parsing(name, layout):
    refs = SETS[name]
    for document in (refs, {"version": 1, "refs": refs, "other": [", ", 5]}):
        text = json.dumps(document, **LAYOUTS[layout])
        if layout == "slashes":
            text = text.replace("/", "\\/")
        assert dict(parse_references(text.encode()).items()) == one_by_one(refs)


def test_references_in_dictionary_are_stored_in_columns(monkeypatch):
    refs = {
        key: (value[0], np.int64(value[1]), value[2]) if isinstance(value, list) else value
        for key, value in regular().items()
    }
    monkeypatch.setattr(parse, "_target", None)  # would otherwise be called for each reference
    references = parse_references({"version": 1, "refs": refs | {"x": b"\0\1", "y": {"n": 1}}})
    assert references.resolve("t/39.4.9") == Address("s3://b/ü 4.nc", 31 * 1999, 40)
    assert [references.resolve(key) for key in "xy"] == [b"\0\1", b'{"n": 1}']
    assert references.key_count == len(refs) + 2


def test_error_for_invalid_value_in_large_dictionary_includes_key():
    for wrong in ([7, 1, 2], ["u", 1.0, 2], ["u", 1, {3}], {4}, ["u", 1, np.float32(2)]):
        with pytest.raises(ReferenceSetError, match="expected") as info:
            parse_references(regular() | {"t/5": wrong})
        assert info.value.key == "t/5"


def test_parsing_uses_less_than_30_megabytes_per_million_references():
    count = 200_000
    lines = (
        f'"t/{i // 1000}.{i % 1000}": ["s3://b/{i // 1000}.nc", {37 * i}, 37]' for i in range(count)
    )
    text = ("{" + ", ".join(lines) + "}").encode()
    tracemalloc.start()
    try:
        references = parse_references(text)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert references.resolve("t/199.999") == Address("s3://b/199.nc", 37 * 199_999, 37)
    assert kept < 12 * count
    assert most < 25 * count + (5 << 20)  # plus one block of numbers


def test_chunk_references_are_stored_in_one_columnar_table_per_array():
    references = parse_references(json.dumps(SETS["two arrays"]))
    assert sorted(references.entries) == ["g/u/.zarray", "t/.zarray"]
    assert [len(table.urls) for table in references.sources] == [7, 7]
    assert all(table.flat_indices is None for table in references.sources)


@pytest.mark.parametrize(
    "key", ["t/40.0.0", "t/0.5.0", "t/0.0", "t/00.0.0", "t/0.0.0.0", "t/-1.0.0"]
)
def test_resolving_chunk_key_without_reference_returns_none(key):
    assert parse_references(SETS["one array"]).resolve(key) is None
    assert parse_references(SETS["gaps"]).resolve("t/3.3") is None


def test_nested_objects_are_not_parsed_as_references():
    inner = {f"t/{i}": ["u", i, 1] for i in range(6000)}
    references = parse_references(json.dumps({"version": 1, "refs": {"t/.zattrs": inner}}))
    assert references.resolve("t/5") is None
    assert json.loads(references.resolve("t/.zattrs")) == inner
    outside = parse_references(json.dumps({"version": 1, "refs": {}, "notes": inner}))
    assert outside.key_count == 0


@pytest.mark.parametrize(
    "member",
    [
        '"t/77": ["u", 1, 2]',
        '"t/77": "text"',
        '"t/2999": ["u", 1, 2], "t/2999": ["u", 1, 2], "x": "y"',
    ],
)
def test_duplicate_keys_in_large_documents_are_rejected(member):
    text = json.dumps(SETS["one dimension"])[:-1] + ", " + member + "}"
    with pytest.raises(ReferenceSetError, match="twice"):
        parse_references(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1999, 1]", "-1999, 1]"),
        ("1999, 1]", "1999.5, 1]"),
        ("1999, 1]", "01999, 1]"),
        ("1999, 1]", "19 99, 1]"),
        ("1999, 1]", ", 1]"),
        ("1999, 1]", "1999]"),
        ("1999, 1]", "1999, 1, 1]"),
        ("1999, 1]", "9999999999999999999, 1]"),
        ("1999, 1]", "99999999999999999999999999999999999, 1]"),
        ('["u", 1999', '["", 1999'),
        ('["u", 1999', '["\\q", 1999'),
        ('["u", 1999', '["\x01", 1999'),
        ('["u", 1999', "[null, 1999"),
        ('["u", 1999', '"u", 1999'),
        ('"t/1999":', '"t/1999"'),
        ('"t/1999":', '"t/19\t99":'),
    ],
)
def test_invalid_entry_in_large_document_raises_reference_set_error(old, new):
    text = json.dumps(SETS["one dimension"])
    assert text.count(old) == 1
    wrong = text.replace(old, new)
    for document in (wrong, wrong.replace('["', '[ "')):
        with pytest.raises(ReferenceSetError):
            parse_references(document)


def test_whitespace_in_strings_of_indented_document_is_preserved():
    refs = {f"t/{i}": [f"a , b [ {i % 7} ] \\", i, 1] for i in range(3000)}
    refs["quoted"] = 'x \\\\" : [ "\\" , 1'
    text = json.dumps(refs, indent=4)
    for document in (text, f" {text}\n"):
        references = parse_references(document)
        assert references.chunks
        assert dict(references.items()) == one_by_one(refs)


def test_error_for_malformed_indented_document_includes_line_number():
    lines = json.dumps(SETS["one dimension"], indent=1).splitlines()
    lines[12_002] = lines[12_002].rstrip(",")
    with pytest.raises(ReferenceSetError, match="line 12004"):
        parse_references("\n".join(lines))


def test_invalid_utf8_in_large_document_raises_reference_set_error():
    text = json.dumps(SETS["one dimension"]).encode()
    for old, new in ((b'"t/', b'"\xff/'), (b'"u"', b'"\xff"')):
        with pytest.raises(ReferenceSetError):
            parse_references(text.replace(old, new))


def test_huge_chunk_index_raises_reference_set_error():
    refs = {f"t/{10**15 + i}.{10**15}": ["u", i, 1] for i in range(100)}
    with pytest.raises(ReferenceSetError, match="chunk keys span"):
        parse_references(refs)


@pytest.mark.parametrize(
    "key",
    ["0/" * 100_000 + "{}a", "t/" + "0/" * 64 + "{}", "t/" + "0." * 64 + "{}"],
    ids=["long", "nested", "dotted"],
)
def test_keys_with_too_many_numbers_are_still_resolved(key):
    refs = {key.format(number): ["u", number, 1] for number in range(100 if len(key) < 999 else 1)}
    references = tabulate(dict(refs))
    assert [references.resolve(key) for key in refs] == [
        Address(*reference) for reference in refs.values()
    ]


def test_templates_in_urls_stored_in_columns_are_rendered():
    refs = {f"t/{i}": ["{{u}}/" + f"{i // 100}.nc", i, 1] for i in range(3000)}
    document = {"version": 1, "templates": {"u": "host"}, "refs": refs}
    for form in (document, json.dumps(document)):
        assert parse_references(form).resolve("t/2345") == Address("host/23.nc", 2345, 1)


def test_pickled_subset_contains_only_its_columns():
    refs = SETS["two arrays"] | {".zattrs": "x" * 100_000}
    references = parse_references(json.dumps(refs))
    part = references.subset("t/")
    assert part.resolve("t/39.4.9") == Address("s3://b/ü 4.nc", 1999 * 31, 40)
    assert part.resolve("g/u/0/0/0") is None
    assert part.resolve("t/.zarray") is None
    travelled = pickle.dumps(part)
    assert len(travelled) < 2000 * 16 + 2000
    assert dict(pickle.loads(travelled).items()) == dict(part.items())


def test_listed_names_do_not_include_chunks_stored_in_tables():
    references = parse_references(SETS["two arrays"])
    assert references.names() == ([], ["g", "t"])
    assert references.names("t/") == ([".zarray"], [])
    assert references.names("g/u/") == ([".zarray"], [])


def test_chunks_of_array_with_numeric_name_are_resolved():
    references = parse_references({f"1/{i}/{j}": ["u", i, j] for i in range(9) for j in range(9)})
    assert references.subset("1/").resolve("1/8/7") == Address("u", 8, 7)
