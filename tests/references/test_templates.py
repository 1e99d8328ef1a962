"""Templates are rendered as by jinja2 or rejected, within limits on time and memory."""

import pickle
import time

import jinja2
import pytest

from xr_nczarr.errors import LimitError, NczarrError, ReferenceSetError, RefusedError
from xr_nczarr.model import Limits
from xr_nczarr.references.expressions import Call, DimensionValue, compiled, formatted, remainder
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.templates import Templates

VALUES = {"i": 7, "j": -3, "s": "text"}


def render(text, templates=None, language="safe", **values):
    expression = Templates(templates or {}, language=language).compile(text, values)
    return str(compiled(expression)(values))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "line\n",
        "a\r\nb",
        "{{ i }}",
        "{{-i-}} x",
        "{# note #}a{{ i + j * 2 - 1 }}b",
        "{{ i / 2 }}|{{ i // 2 }}|{{ i % 4 }}|{{ i ** 3 }}|{{ -i ** 2 }}|{{ +j }}",
        "{{ j // 2 }}|{{ j % 4 }}|{{ i * 1.5 }}",
        "{{ i == 7 }}{{ i != 7 }}{{ i < j }}{{ i <= 7 }}{{ i > j }}{{ i >= 8 }}",
        "{{ i and j }}{{ i or j }}{{ not i }}{{ 0 and 1 // 0 }}{{ 1 or 1 // 0 }}{{ 0 or i }}",
        "{{ 'a' if i > 3 else 'b' }}{{ 1 // 0 if j > 0 else 'c' }}",
        "{{ i ~ '_' ~ s }}{{ s + 'x' }}",
        "{{ '%04d' % i }}{{ '%4d|%x|%s' | format(j, i, s) }}{{ '%04d%%' | format(j) }}",
        "{{ '%d|%s' | format(i / 2, i / 2) }}{{ '%03d' % (i / 2) }}{{ '%d' % 3.7 }}",
        "{{ '%03x' | format(j) }}{{ '%05s' | format(s) }}{{ '%d' | format(true) }}",
        "{{ j | abs }}{{ 3.7 | int }}{{ (i / 3) | round(2) }}{{ 2.5 | round }}{{ i | string }}",
        "{{ true }}{{ 1.0 }}{{ 1e3 }}{{ 'q' }}{{ 0x1f }}",
        "{% raw %}{{ i }}{% endraw %}",
    ],
)
def test_templates_are_rendered_to_same_text_as_in_jinja2(text):
    assert render(text, **VALUES) == jinja2.Template(text).render(**VALUES)


# Regression D36
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{u}}", "host"),
        ("{{ f(c='x') }}", "<x>"),
        ("{{ f(c=f(c=i)) }}", "<<7>>"),
        ("{{ w }}", "host/7"),
        ("{{ w(i='other') }}", "host/other"),
        ("{{ u() }}", "host"),
        ("{{ s }}", "dimension"),
    ],
)
def test_templates_can_use_arguments_dimensions_and_other_templates(text, expected):
    templates = {"u": "host", "f": "<{{c}}>", "w": "{{u}}/{{i}}", "s": "template"}
    assert render(text, templates, i=7, s="dimension") == expected


HOSTILE = [
    "{{ i.__class__ }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ i['__class__'] }}",
    "{{ [1, 2] }}",
    "{{ (1, 2) }}",
    "{{ {'a': 1} }}",
    "{{ i is odd }}",
    "{{ 's' in s }}",
    "{{ 1 < i < 9 }}",
    "{{ 'a' if i }}",
    "{{ none }}",
    "{{ s | attr('__class__') }}",
    "{{ s | center(10 ** 9) }}",
    "{{ s | replace('t', s) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ f(*[1]) }}",
    "{{ f(**{}) }}",
    "{{ f(1) }}",
    "{{ (f)(c=1)(d=2) }}",
    "{% set a = 1 %}",
    "{% for a in s %}{{ a }}{% endfor %}",
    "{% for a in s %}{% for b in s %}{{ a }}{% endfor %}{% endfor %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% macro m() %}{% endmacro %}",
    "{% if i %}x{% endif %}",
]


# Regression D47
@pytest.mark.parametrize("text", HOSTILE)
def test_template_syntax_beyond_names_and_arithmetic_is_rejected(text):
    with pytest.raises((RefusedError, ReferenceSetError)):
        render(text, {"f": "{{c}}"}, **VALUES)


# Regression D47
@pytest.mark.parametrize(
    "text",
    [
        "{{ 9 ** 9 ** 9 }}",
        "{{ i ** 10000000 }}",
        "{{ (2 ** 60) * (2 ** 60) * (2 ** 60) }}",
        "{{ '%99d' % i }}",
        "{{ s * 1000000000 }}",
        "{{ '%1000000000d' % i }}",
        "{{ 1.5 ** 100000 }}",
        "{{ (0 - 8) ** 0.5 }}",
        "{{ 1 // 0 }}",
        "{{ 1 + 's' }}",
        "{{ 1e308 * 10 | int }}{{ (1e308 * 10) | int }}",
        "{{ 1.5 | round(400) }}",
        "{{ " + "(" * 5000 + "i" + ")" * 5000 + " }}",
        "{{ " + "-" * 3000 + "i }}",
        "{{ " + "+".join(["i"] * 3000) + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ i }}" * 20_000,
        "{{ '%d' % s }}",
        "{{ '%s%s' % s }}",
        "{{ '%s' | format(i, i) }}",
        "{{ range(10) }}",
        "{{ lipsum() }}",
        "{{ self }}",
        "{{ loop }}",
    ],
)
def test_expensive_and_invalid_templates_are_rejected_quickly(text):
    started = time.process_time()
    with pytest.raises((LimitError, ReferenceSetError, RefusedError)):
        render(text, **VALUES)
    assert time.process_time() - started < 5


# Regression D47
@pytest.mark.parametrize("leaf", ["", "x", "{{i}}"])
def test_exponentially_growing_template_output_is_rejected(leaf):
    chain = {f"t{n}": f"{{{{t{n + 1}}}}}" * 8 for n in range(30)} | {"t30": leaf}
    with pytest.raises(LimitError):
        render("{{t0}}", chain, i=1)


# Regression D47
def test_exponentially_nested_template_arguments_are_rejected():
    nested = "f(c=" * 25 + "i" + ")" * 25
    with pytest.raises(LimitError):
        render("{{" + nested + "}}", {"f": "{{c}}{{c}}"}, i="")


def test_full_jinja2_sandbox_can_be_enabled():
    text = "{% for k in range(i) %}{{ k }}{{ 'odd'[:1] if k is odd }}{% endfor %}"
    assert render(text, language="jinja2", i=4) == "01o23o"
    mixed = "{% set n = i + 1 %}{{ u }}/{{ f(c=n) }}"
    assert render(mixed, {"u": "h{{i}}", "f": "<{{c}}>"}, "jinja2", i=1) == "h1/<2>"


# Regression D47
@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ i.real.__class__ }}",
        "{{ ('%s' % i).__init__.__globals__ }}",
        "{{ [1].append(2) }}",
        "{{ [i] | map(attribute='__class__') | list }}{{ u.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum(10000) }}",
        "{{ [s * 1000000000] }}",
        "{{ [9 ** 9 ** 9] }}",
        "{{ s.center(3)[0] * 10 ** 9 }}",
        "{% for a in range(99999) %}{{ a }}{% endfor %}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        "{{ undefined.field }}",
        "{% include '/etc/passwd' %}",
        "{% if %}",
    ],
)
def test_sandbox_rejects_large_results_and_access_to_internals(text):
    with pytest.raises(NczarrError):
        render(text, {"u": "x"}, "jinja2", i=3, s="abc")


def test_generators_with_sandboxed_templates_can_be_resolved_and_pickled():
    document = {
        "version": 1,
        "gen": [
            {
                "key": "v/{{i}}",
                "url": "f_{{ ['a', 'b'][i % 2] }}",
                "dimensions": {"i": {"stop": 1000}},
            }
        ],
    }
    with pytest.raises(RefusedError):
        parse_references(document)
    references = parse_references(document, templates="jinja2")
    again = pickle.loads(pickle.dumps(references))
    for listed in (references, again):
        assert listed.resolve("v/3").url == "f_b"


@pytest.mark.parametrize(
    "pattern", ["%d", "a%04db", "%3d", "%007x", "%064d", "%05s", "%x", "\n%9d%%"]
)
@pytest.mark.parametrize("value", [0, 7, -5, 2**100, True, "text"])
def test_percent_formatting_yields_same_text_as_python(pattern, value):
    compute = compiled(Call(remainder, (pattern, DimensionValue("i"))))
    try:
        expected = formatted(pattern, value)
    except TypeError:
        with pytest.raises(ReferenceSetError):
            compute({"i": value})
    else:
        assert compute({"i": value}) == expected


def test_format_strings_with_excessive_padding_are_rejected():
    with pytest.raises(ReferenceSetError, match="the format %65d is not supported; use only"):
        compiled(Call(remainder, ("%65d", DimensionValue("i"))))({"i": 1})


MANY = {f"k{i}": [f"{{{{ {i} }}}}u", 0, 8] for i in range(600)}
LONG = {f"k{i}": [f"{{{{u}}}}{i}", 0, 8] for i in range(600)}
FORMULA = {"key": "{{i}}", "url": "u", "dimensions": {"i": {"stop": 10**18}}}
BLURRED = {
    "key": "b/{{i}}{{j}}x",
    "url": "{{u}}{{i}}",
    "dimensions": {"i": {"start": 10, "stop": 99}, "j": [33, 44]},
}


@pytest.mark.parametrize(
    "members",
    [
        {"refs": MANY},
        {"refs": LONG, "templates": {"u": "x" * 60_000}},
        {"gen": [FORMULA | {"key": f"b{i}/{{{{i}}}}"} for i in range(600)]},
        {"gen": [BLURRED], "templates": {"u": "x" * 60_000}},
    ],
    ids=["parsed", "rendered", "generators", "template expansion"],
)
def test_cost_of_expanding_reference_document_is_limited(members):
    with pytest.raises(LimitError, match="max_references"):
        parse_references({"version": 1} | members, limits=Limits(max_references=10_000))


def test_keys_of_huge_generator_are_listed_lazily():
    dimensions = {"i": [1, 3, 5], "j": {"stop": 10**18}}
    generator = {"key": "b/{{i}}.{{j}}", "url": "u", "offset": "{{j}}", "length": "1"}
    references = parse_references({"version": 1, "gen": [generator | {"dimensions": dimensions}]})
    assert [key for key, _ in zip(references.items(), "ab", strict=False)][1][0] == "b/1.1"


def test_generator_with_very_long_rendered_url_is_rejected():
    templates = {"a": "x" * 60_000, "b": "y" * 60_000}
    generator = {"key": "b/{{i}}", "url": "{{a if i else b}}" * 3, "dimensions": {"i": {"stop": 9}}}
    with pytest.raises(LimitError, match="produces more than 65,536 characters"):
        parse_references({"version": 1, "templates": templates, "gen": [generator]})
