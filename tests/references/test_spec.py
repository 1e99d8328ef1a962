"""Reference documents of versions 0 and 1: the references of keys, and invalid documents."""

import json
import pickle
import tracemalloc

import jinja2
import pytest

from xr_nczarr.errors import LimitError, NczarrError, ReferenceSetError, RefusedError
from xr_nczarr.model import Limits
from xr_nczarr.references import expand, generators
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.render import collect_references, render_references
from xr_nczarr.references.targets import absolute_url
from xr_nczarr.storage.store import Address

EXAMPLE = """{
    "version": 1,
    "templates": {"u": "server.domain/path", "f": "{{c}}"},
    "gen": [
        {
            "key": "gen_key{{i}}",
            "url": "http://{{u}}_{{i}}",
            "offset": "{{(i + 1) * 1000}}",
            "length": "1000",
            "dimensions": {"i": {"stop":  5}}
        }
    ],
    "refs": {
      "key0": "data",
      "key1": ["http://target_url", 10000, 100],
      "key2": ["http://{{u}}", 10000, 100],
      "key3": ["http://{{f(c='text')}}", 10000, 100]
    }
}"""

EXPANDED = """{
  "key0": "data",
  "key1": ["http://target_url", 10000, 100],
  "key2": ["http://server.domain/path", 10000, 100],
  "key3": ["http://text", 10000, 100],
  "gen_key0": ["http://server.domain/path_0", 1000, 1000],
  "gen_key1": ["http://server.domain/path_1", 2000, 1000],
  "gen_key2": ["http://server.domain/path_2", 3000, 1000],
  "gen_key3": ["http://server.domain/path_3", 4000, 1000],
  "gen_key4": ["http://server.domain/path_4", 5000, 1000]
}"""


def version1(**members):
    return {"version": 1, **members}


def generator(**changes):
    member = {
        "key": "v/{{i}}",
        "url": "f.nc",
        "offset": "{{i * 10}}",
        "length": "10",
        "dimensions": {"i": {"stop": 4}},
    }
    return {name: value for name, value in (member | changes).items() if value is not None}


# Regressions D35, D36
def test_reference_spec_example_expands_as_specified():
    assert json.dumps(expand(EXAMPLE)) == json.dumps(json.loads(EXPANDED))
    for document in (EXAMPLE.encode(), json.loads(EXAMPLE)):
        assert expand(document) == json.loads(EXPANDED)


def test_expanding_version_0_document_leaves_it_unchanged():
    assert expand(EXPANDED) == json.loads(EXPANDED)


def test_template_overrides_replace_templates():
    expanded = expand(EXAMPLE, {"u": "mirror"})
    assert expanded["key2"] == ["http://mirror", 10000, 100]
    assert expanded["gen_key4"] == ["http://mirror_4", 5000, 1000]


# Regression D44
@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("text", b"text"),
        ("°C", "°C".encode()),
        ("", b""),
        ("base64:AAEC", b"\0\1\2"),
        ({"shape": [1], "fill_value": None}, b'{"shape": [1], "fill_value": null}'),
    ],
)
def test_inline_entries_can_be_text_base64_or_json(value, data):
    references = parse_references(json.dumps(version1(refs={"a": value})))
    assert references.resolve("a") == data


@pytest.mark.parametrize("value", [b"base64:AAEC", b"\0\1\2"])
def test_inline_bytes_can_be_raw_or_base64(value):
    assert parse_references({"a": value}).resolve("a") == b"\0\1\2"


# Regression D49
def test_nan_literal_in_inline_object_is_preserved():
    references = parse_references('{".zattrs": {"missing": NaN, "low": -Infinity}}')
    assert references.resolve(".zattrs") == b'{"missing": NaN, "low": -Infinity}'


def test_references_can_point_to_whole_objects_or_byte_ranges():
    references = parse_references({"a": ["u"], "b": ("u", 0, 0)})
    assert references.resolve("a") == Address("u", None, None)
    assert references.resolve("b") == Address("u", 0, 0)
    assert references.resolve("c") is None


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": ' + "1" * 5000 + "}", "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        ('{"a": "1", "a": "2"}', "twice"),
        ('{"version": 1, "refs": {"a": ["u", 1, 2], "a": ["u", 3, 4]}}', "twice"),
        ({"version": 2, "refs": {}}, '"version" is 2'),
        ({"version": "1", "refs": {}}, "\"version\" is '1'"),
        ({"version": True, "refs": {}}, '"version" is True'),
        ({"refs": {"a": "b"}}, 'no "version"'),
        (version1(refs=[]), "expected an object"),
        (version1(templates={"u": 1}), "expected a string"),
        (version1(templates=["u"]), "expected an object"),
        ({"a": ["u", 1]}, "expected a string, an object"),
        ({"a": []}, "expected a string, an object"),
        ({"a": ["u", 1, 2, 3]}, "expected a string, an object"),
        ({"a": None}, "expected a string, an object"),
        ({"a": 5}, "expected a string, an object"),
        ({"a": [None, 1, 2]}, "URL is"),
        ({"a": [""]}, "URL is"),
        ({"a": ["u", -1, 2]}, "offset is"),
        ({"a": ["u", 1, -2]}, "length is"),
        ({"a": ["u", 1.0, 2]}, "offset is"),
        ({"a": ["u", True, 2]}, "offset is"),
        ({"a": ["u", "1", 2]}, "offset is"),
        ({"a": ["u", 2**63, 2]}, "offset is"),
        (version1(gen={}), "gen"),
        (version1(gen=[5]), "gen"),
        (version1(gen=[generator(key=None)]), "key"),
        (version1(gen=[generator(url=5)]), "url"),
        (version1(gen=[generator(length=None)]), 'gen[0]: the generator has only one of "offset"'),
        (version1(gen=[generator(dimensions={})]), "number of dimensions is 0"),
        (version1(gen=[generator(dimensions=None)]), "expected an object"),
        (version1(gen=[generator(dimensions={"i": {}})]), "expected an integer"),
        (version1(gen=[generator(dimensions={"i": {"stop": 3, "step": 0}})]), '"step" is 0'),
        (version1(gen=[generator(dimensions={"i": {"stop": 3, "step": "1"}})]), "an integer"),
        (version1(gen=[generator(dimensions={"i": {"stop": 2**70}})]), "expected an integer"),
        (version1(gen=[generator(dimensions={"i": [1.5]})]), "expected an integer"),
        (version1(gen=[generator(dimensions={"i": "ab"})]), "expected a list"),
        (version1(gen=[generator(dimensions={"i": [1, 1]})]), "gen: the key is declared twice"),
        (version1(gen=[generator(dimensions={"i": [1], "j": [2, 3]})]), "the key is declared"),
        (version1(gen=[generator(key="{{i}}/.zarray")]), "metadata document"),
        (version1(gen=[generator(key="v{{i}}/zarr.json")]), "metadata document"),
        (
            version1(gen=[generator(offset="0", dimensions={"i": ["0", ".zarray", "1"]})]),
            "metadata document",
        ),
        (version1(gen=[generator(offset="{{i / 2}}")]), "offset is"),
        (version1(gen=[generator(offset="{{i - 2}}")]), "offset is"),
        (version1(gen=[generator(length="ten")]), "length is"),
        (version1(gen=[generator(url="{{k}}")]), "neither a dimension nor a template"),
        (version1(gen=[generator(key="v/{{i}}{{i}}")], refs={"v/22": "x"}), "declared"),
        (version1(templates={"a": "{{a}}"}, refs={"k": ["{{a}}"]}), "refers to itself"),
        (version1(templates={"a": "{{b}}", "b": "{{a}}"}, refs={"k": ["{{a}}"]}), "itself"),
        (version1(refs={"k": ["{{a}}"]}), "neither a dimension nor a template"),
        (version1(refs={"k": ["{{"]}), "not valid jinja2"),
    ],
)
def test_documents_that_violate_spec_are_rejected(document, problem):
    if isinstance(document, dict):
        document = json.dumps(document)
    with pytest.raises(ReferenceSetError) as caught:
        parse_references(document)
    assert problem in str(caught.value)


def test_error_for_value_without_json_form_includes_key_only_if_value_is_in_reference():
    for document in ({"a": {1}}, {"refs": {"a": {1}}}, version1(refs={"a": {1}})):
        with pytest.raises(ReferenceSetError, match=r"^a: .*of type set are not supported"):
            parse_references(document)
    with pytest.raises(ReferenceSetError, match=r"^the dictionary .*of type set are not"):
        parse_references(version1(gen=[generator(dimensions={"i": {1}})]))


@pytest.mark.parametrize("text", ["base64:a", "base64:!!!!", "\ud800"])
def test_invalid_inline_data_raises_error_only_when_read(text):
    references = parse_references({"a": text, "b": "right"})
    assert references.resolve("b") == b"right"
    with pytest.raises(ReferenceSetError, match="cannot be decoded"):
        references.resolve("a")


def test_error_for_invalid_generator_includes_generated_key():
    document = version1(gen=[generator(), generator(key="w/{{i}}", offset="{{i - 1}}")])
    with pytest.raises(ReferenceSetError) as caught:
        parse_references(document)
    assert (caught.value.key, caught.value.place) == ("w/0", "gen[1]")


def test_reading_key_declared_by_two_generators_raises_error():
    both = [generator(), generator(dimensions={"i": {"start": 3, "stop": 6}})]
    references = parse_references(version1(gen=both))
    assert references.resolve("v/2") == Address("f.nc", 20, 10)
    with pytest.raises(ReferenceSetError, match="declared twice"):
        references.resolve("v/3")
    with pytest.raises(ReferenceSetError, match="declared twice"):
        expand(version1(gen=both))


def test_reading_key_declared_in_refs_and_gen_raises_error():
    document = version1(gen=[generator()], refs={"v/2": ["u", 1, 2]})
    references = parse_references(document)
    assert references.resolve("v/1") == Address("f.nc", 10, 10)
    with pytest.raises(ReferenceSetError, match="declared twice"):
        references.resolve("v/2")
    with pytest.raises(ReferenceSetError, match="declared twice"):
        expand(document)


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ({"i": {"start": 2, "stop": 9, "step": 3}}, ["v/2", "v/5", "v/8"]),
        ({"i": {"start": 9, "stop": 2, "step": -3}}, ["v/9", "v/6", "v/3"]),
        ({"i": {"stop": 3, "step": -1}}, []),
        ({"i": [7, 3]}, ["v/7", "v/3"]),
        ({"i": ["a", "b"]}, ["v/a", "v/b"]),
        ({"i": {"stop": 0}}, []),
        ({"i": {"start": -1, "stop": 1}}, ["v/-1", "v/0"]),
    ],
)
def test_generator_dimensions_can_be_ranges_or_lists(dimensions, expected):
    document = version1(gen=[generator(offset=None, length=None, dimensions=dimensions)])
    assert list(expand(document)) == expected
    references = parse_references(document)
    assert all(references.resolve(key) == Address("f.nc") for key in expected)
    assert references.resolve("v/4") is None


def test_generator_dimensions_form_cartesian_product():
    document = version1(
        templates={"t": "host/{{i}}"},
        gen=[
            generator(
                key="{{v}}/{{i}}.{{j}}",
                url="{{t}}/{{v}}_{{j}}",
                offset="{{i * 100 + j}}",
                dimensions={"v": ["a", "b"], "i": {"stop": 2}, "j": [5, 6]},
            )
        ],
    )
    expanded = expand(document)
    assert list(expanded)[:3] == ["a/0.5", "a/0.6", "a/1.5"]
    assert expanded["b/1.6"] == ["host/1/b_6", 106, 10]
    assert len(expanded) == 8


@pytest.mark.parametrize(
    "key",
    [
        "v/{{i}}.{{j}}",
        "v/{{2 * i - 3}}/{{j + 1}}",
        "v/{{'%03d'|format(i)}}{{'%03d' % j}}",
        "v/{{i // 3}}.{{i % 3}}.{{j}}",
        "v/{{'even' if i % 2 == 0 else 'odd'}}{{i}}-{{j}}",
        "v/{{i}}{{j}}x",
        "v/{{i * 9 + j}}",
        "{{i}}/{{j}}/{{i}}",
    ],
)
def test_resolving_and_expanding_generator_yield_same_references(key):
    document = version1(
        gen=[
            generator(
                key=key,
                offset="{{i * 100 + j}}",
                dimensions={"i": {"start": 10, "stop": 19}, "j": {"stop": 9}},
            )
        ]
    )
    expanded = expand(document)
    assert len(expanded) == 81
    references = parse_references(document)
    for name, entry in expanded.items():
        assert references.resolve(name) == Address(*entry)
    for unknown in ("v/", "v/010.1", "v/9.0", "v/10.9", "v/10.01", "v/-1.0", "v/1０.1", "x"):
        assert references.resolve(unknown) is None


DIMENSIONS = {"i": {"start": 10, "stop": 19, "step": 3}, "j": [7, 0, 2]}


@pytest.mark.parametrize(
    "key",
    [
        "{{i}}.{{j}}",
        "{{j}}/{{i}}",
        "v/{{i}}.{{j}}",
        "g/7/{{i}}/{{j}}",
        "v/c/{{j}}/0/{{i}}/{{i}}",
        "v.2/{{2 * i - 3}}.{{30 - 4 * j}}.{{j + 1}}",
        "v/{{i + i}}.{{j}}.{{ 2 * (i - 1) * 3 }}",
        "{{ 'v' }}/{{ 5 }}.{{ i ~ '.' ~ j }}",
    ],
)
def test_generators_with_linear_chunk_indices_are_not_expanded(key):
    document = version1(gen=[generator(key=key, offset="{{9 * i + j}}", dimensions=DIMENSIONS)])
    references = parse_references(document, limits=Limits(max_references=0))
    assert references.entries == {}
    expected = {name: Address(*entry) for name, entry in expand(document).items()}
    assert len(expected) == 9
    for name, address in expected.items():
        assert references.resolve(name) == address
        assert references.subset(name[: name.rfind("/") + 1]).resolve(name) == address
        for other in (f"{name}1", f"{name}.0", f"x/{name}", f"0/{name}", name.replace("1", "2")):
            assert references.resolve(other) == expected.get(other)


@pytest.mark.parametrize(
    "key",
    [
        "key{{i}}.{{j}}",
        "v/{{i}}{{j}}",
        "v/{{'%02d' % i}}.{{j}}",
        "v/{{i - 15}}.{{j}}",
        "v/{{i // 3}}.{{j}}",
        "v/{{i + j}}.{{j}}",
        "v/{{i}}.{{j}}x",
        "v{{i}}/{{j}}",
        "v/{{i}}.{{j}}.{{0 * j}}",
        "v/{{i}}.{{j}}.{{ 5 if true else 1 // 0 }}",
        "v/{{i}}.{{j}}.{{ i * 10 ** 17 }}",
    ],
)
def test_generators_with_nonlinear_chunk_indices_are_expanded(key):
    document = version1(gen=[generator(key=key, offset="{{9 * i + j}}", dimensions=DIMENSIONS)])
    references = parse_references(document)
    assert len(references.entries) == 9
    assert not references.chunks
    with pytest.raises(LimitError, match="must be expanded declare 9 references"):
        parse_references(document, limits=Limits(max_references=8))


def test_generated_keys_without_separator_between_numbers_are_resolved():
    dimensions = {"i": {"start": 1, "stop": 3}, "j": {"start": 8, "stop": 12}}
    document = version1(gen=[generator(key="v/{{i}}{{j}}", dimensions=dimensions)])
    references = parse_references(document)
    expanded = expand(document)
    assert sorted(expanded) == sorted(f"v/{i}{j}" for i in (1, 2) for j in (8, 9, 10, 11))
    assert all(references.resolve(key) == Address(*entry) for key, entry in expanded.items())


def test_generator_of_one_billion_keys_is_resolved_without_expansion():
    document = version1(
        gen=[
            generator(
                key="g/v/{{i}}.{{j}}",
                offset="{{(i * 10000 + j) * 8}}",
                dimensions={"i": {"stop": 100_000}, "j": {"stop": 10_000}},
            )
        ]
    )
    references = parse_references(document)
    assert references.key_count == 10**9
    assert references.resolve("g/v/99999.9999") == Address("f.nc", (10**9 - 1) * 8, 10)
    assert references.resolve("g/v/100000.0") is None
    assert references.names() == ([], [])
    part = references.subset("g/v/")
    assert len(pickle.dumps(part)) < 1500
    assert pickle.loads(pickle.dumps(part)).resolve("g/v/1.1") == Address("f.nc", 80_008, 10)
    assert references.subset("h/").resolve("g/v/1.1") is None
    with pytest.raises(LimitError, match="max_references"):
        expand(document)


def test_generator_templates_are_parsed_once_and_evaluated_per_key(monkeypatch):
    parsed, evaluated = [], []
    parse, compiled = jinja2.Environment.parse, generators.compiled

    def counting_parse(environment, source, *arguments):
        parsed.append(source)
        return parse(environment, source, *arguments)

    def counting(expression):
        compute = compiled(expression)
        return lambda values: evaluated.append(expression) or compute(values)

    monkeypatch.setattr(jinja2.Environment, "parse", counting_parse)
    monkeypatch.setattr(generators, "compiled", counting)
    stops = {"i": {"stop": 10**6}, "j": {"stop": 1000}}
    key, offset = "g/v/{{i}}.{{j}}", "{{(i * 1000 + j) * 8}}"
    formula = generator(key=key, offset=offset, dimensions=stops)
    tracemalloc.start()
    try:
        references = parse_references(version1(gen=[formula]))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert references.key_count == 10**9
    assert len(parsed) <= 4
    # Two templates for the first key, and two for the last.
    assert len(evaluated) < 20
    parsed.clear()
    evaluated.clear()
    for i in range(100):
        assert references.resolve(f"g/v/{i * 9999}.7").offset == (i * 9_999_000 + 7) * 8
    assert not parsed
    assert 100 <= len(evaluated) <= 10 * 100


# Regression D47
def test_number_of_references_created_by_generators_is_limited():
    document = version1(
        gen=[generator(key="v/{{i + j}}", dimensions={"i": {"stop": 10**6}, "j": {"stop": 10**6}})]
    )
    with pytest.raises(LimitError, match="max_references"):
        parse_references(document)
    few = version1(gen=[generator(key="v/{{i}}{{j}}", dimensions={"i": [1, 22], "j": [3, 44]})])
    assert parse_references(few, limits=Limits(max_references=4)).key_count == 4
    with pytest.raises(LimitError, match="max_references"):
        parse_references(few, limits=Limits(max_references=3))


def test_reference_document_size_is_limited():
    with pytest.raises(LimitError, match="max_consolidated_bytes"):
        parse_references(EXAMPLE, limits=Limits(max_consolidated_bytes=100))


def test_limits_for_expansion_can_be_passed_as_object_or_mapping():
    for limits in ({"max_consolidated_bytes": 100}, Limits(max_consolidated_bytes=100)):
        with pytest.raises(LimitError, match=r"pass limits=Limits\(max_consolidated_bytes=…\)"):
            expand(EXAMPLE, limits=limits)
    with pytest.raises(ValueError, match=r"unknown limit 'max_nods'\. Did you mean max_nodes"):
        expand(EXAMPLE, limits={"max_nods": 1})


def test_names_of_references_are_listed_one_level_at_a_time():
    references = parse_references(
        version1(
            refs={".zgroup": "{}", "a/.zarray": "{}", "a/0": ["u"], "a/b/c/0": ["u"], "a-b/0": "x"},
            gen=[generator(key="p/{{i}}")],
        )
    )
    assert references.names() == ([".zgroup"], ["a", "a-b"])
    assert references.names("a/") == ([".zarray", "0"], ["b"])
    assert references.names("a/b/") == ([], ["c"])
    assert references.names("nothing/") == ([], [])


# Regression D46
@pytest.mark.parametrize(
    ("url", "document", "expected"),
    [
        ("s3://b/x", "https://h/r.json", "s3://b/x"),
        ("a::b", "https://h/r.json", "a::b"),
        ("file:/etc/x", "https://h/r.json", "file:/etc/x"),
        ("data:,x", "https://h/r.json", "data:,x"),
        ("run-2026-01-01T00:00.nc", "/data/r.json", "/data/run-2026-01-01T00:00.nc"),
        ("run-2026-01-01T00:00.nc", "https://h/r.json", "https://h/run-2026-01-01T00:00.nc"),
        ("x.nc", "https://h/d/r.json?key=1#f", "https://h/d/x.nc"),
        ("../x.nc", "https://h/d/e/r.json", "https://h/d/x.nc"),
        ("../../../../x.nc", "s3://b/d/r.json", "s3://b/x.nc"),
        ("/x.nc", "https://h/d/r.json", "https://h/x.nc"),
        ("x.nc", "/data/r.json", "/data/x.nc"),
        ("x.nc", "r.json", "x.nc"),
        ("/x.nc", "sets/r.json", "/x.nc"),
        ("x.nc", "file:///data/r.json", "file:///data/x.nc"),
        ("x.nc", "simplecache::s3://b/d/r.json", "simplecache::s3://b/d/x.nc"),
        ("x.nc", "zip://d/r.json::s3://b/z.zip", "zip://d/x.nc::s3://b/z.zip"),
    ],
)
def test_relative_urls_are_resolved_against_document_url(url, document, expected):
    assert absolute_url(url, document) == expected


def test_rendered_reference_set_expands_to_original_references():
    entries = {
        ".zattrs": b'{"a": "\xc2\xb0C"}',
        "binary": b"base64:\x00\xff",
        "looks": b"base64:AAAA",
        "braces": Address("s3://b/{{x}}"),
        **{f"r/{i}.{j}": Address("f", 100 + 70 * i + 7 * j, 7) for i in range(9) for j in range(9)},
        **{f"m/{i}.0": Address(f"f{i // 40}", 50 * (i % 40), 50) for i in range(120)},
        **{f"n/c/{i}/{j}": Address(f"b/n/c/{i}/{j}") for i in range(9) for j in range(9)},
        **{f"d/{i}": Address("f", 10_000 - 10 * i, 10) for i in range(99)},
        **{f"x/{i}": Address("f", i * i, 10 + i % 3) for i in range(99)},
        **{f"few/{i}": Address("f", i, 1) for i in range(3)},
    }
    listed = collect_references(entries.items())
    plain = render_references(listed)
    assert dict(parse_references(plain).items()) == entries
    assert "gen" not in plain
    document = render_references(listed, generators=True)
    references = parse_references(document)
    assert dict(references.items()) == entries
    assert len(document["gen"]) == 1 + 3 + 1 + 1
    assert len(document["refs"]) == 4 + 99 + 3
    again = render_references(collect_references(references.items()), generators=True)
    assert dict(parse_references(again).items()) == entries


def test_forbidden_template_syntax_raises_refused_error():
    with pytest.raises(RefusedError, match='templates="jinja2"') as caught:
        parse_references(version1(refs={"a": ["{% for i in x %}{% endfor %}"]}))
    assert isinstance(caught.value, NczarrError)


# The references of generators were once left out.
def test_rendered_reference_set_includes_generated_references():
    document = version1(
        refs={"b/0": "x"}, gen=[generator(key="a/{{i}}", dimensions={"i": [0, 1, 2]})]
    )
    rendered = render_references(parse_references(document))
    assert sorted(rendered["refs"]) == ["a/0", "a/1", "a/2", "b/0"]
