"""Every code block of the documentation runs and prints the output on the page.

The blocks of a page run one after another, in one namespace and one new directory:

- ``python`` blocks are executed. A ``text`` block directly after one contains its output.
- ``console`` blocks contain lines of ``$ nczarr …`` or another command, each with its output.
- ``sh`` blocks would change the machine, and are not run.

Outputs are compared as in doctests, in which ``...`` matches anything. Local servers replace the
example addresses of a page: see the fixture `places`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import xr_nczarr
from xr_nczarr import errors
from xr_nczarr.cli.main import main
from xr_nczarr.encoding.encoding_keys import ENCODING_KEYS
from xr_nczarr.model import Limits

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
    if "_build" not in path.parts and re.search(r"^```(python|console)$", path.read_text(), re.M)
)
NOTEBOOKS = sorted(path.name for path in DOCS.glob("notebooks/*.ipynb"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(text: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield the kind, code, output and line number of each block that is run."""
    result = list(BLOCK.finditer(text))
    for at, block in enumerate(result):
        kind, code = block.groups()
        after = result[at + 1] if at + 1 < len(result) else None
        follows = after is not None and not text[block.end() : after.start()].strip()
        output = after[2] if after is not None and follows and after[1] == "text" else ""
        if kind in ("python", "console"):
            yield kind, code, output, text.count("\n", 0, block.start()) + 1


def check_output(expected: str, result: str, where: str) -> None:
    if not doctest.OutputChecker().check_output(expected, result, FLAGS):
        raise AssertionError(f"{where}: expected\n{expected}\nfound\n{result}")


def run_command(line: str) -> str:
    """Return the output of a command.

    ``nczarr`` runs in this process, unless the line needs a shell.
    """
    words = shlex.split(line)
    if words[0] == "nczarr" and not set(line) & set("|>;"):
        printed = io.StringIO()
        streams = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
        with streams[0], streams[1], contextlib.suppress(SystemExit):
            main(words[1:])
        return printed.getvalue()
    if any(shutil.which(name) is None for name in ("ncdump", "ncgen") if name in words):
        pytest.skip("netcdf-bin is not installed")
    line = re.sub(r"\bpython\b", shlex.quote(sys.executable), line)
    run = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=False)
    return run.stdout + run.stderr


def run_page(page: str, places: dict[str, str], namespace: dict[str, Any]) -> None:
    text = (ROOT / page).read_text()
    for name, address in places.items():
        text = text.replace(name, address)
    for kind, code, expected, line in blocks(text):
        where = f"{page}:{line}"
        if kind == "python":
            printed = io.StringIO()
            compiled = compile("\n" * line + code, str(ROOT / page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(compiled, namespace)
            if expected:
                check_output(expected, printed.getvalue(), where)
            continue
        for command in re.split(r"^\$ ", code, flags=re.M)[1:]:
            head, _, output = command.partition("\n")
            result = run_command(head)
            if output.strip():
                check_output(output, result, f"{where}: {head}")


def _set_variables(variables: dict[str, str]) -> None:
    os.environ.update(variables)


@pytest.fixture
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that starts the servers that a page needs.

    The function maps the example addresses on the page to the addresses of these servers.
    """

    def found(text: str) -> dict[str, str]:
        places: dict[str, str] = {}
        credentials: dict[str, str] = {}
        if "https://data.example.org" in text:
            server = request.getfixturevalue("http_server")
            Path("served").symlink_to(server.root)
            places["https://data.example.org"] = server.url
        if "https://archive.example.org" in text:
            archive = request.getfixturevalue("http_server")
            archive.token = "1234"
            store = f"{archive.root}/store.nczarr"
            xr_nczarr.to_nczarr(xr.Dataset({"t": ("time", [0.0, 1.0, 2.0])}), store)
            places["https://archive.example.org"] = archive.url
        if "s3://" in text:
            s3 = request.getfixturevalue("s3_server")
            credentials = {
                "AWS_ENDPOINT_URL": s3.endpoint,
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_DEFAULT_REGION": s3.region,
            }
            for name, value in credentials.items():
                monkeypatch.setenv(name, value)
            places["https://s3.example.org"] = s3.endpoint
        if "tcp://scheduler.example.org:8786" in text:
            client = request.getfixturevalue("workers")
            client.run(_set_variables, credentials)  # workers may already be running
            places["tcp://scheduler.example.org:8786"] = client.scheduler.address
        return places

    return found


# Other libraries warn about each other and about their own deprecations.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_print_documented_output(
    page: str, places: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "import icechunk" in (ROOT / page).read_text():
        pytest.importorskip("icechunk")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    run_page(page, places((ROOT / page).read_text()), {"__name__": "__main__"})


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_and_draw_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    monkeypatch.chdir(tmp_path)
    notebook = json.loads((DOCS / "notebooks" / name).read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in notebook["cells"]), "keep it without outputs"
    plt.close("all")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        exec(compile(cell, name, "exec"), namespace)
    assert len(plt.get_fignums()) >= 2
    plt.close("all")


def test_documentation_covers_all_encoding_keys_limits_errors_and_public_names() -> None:
    result = {name: (DOCS / f"reference/{name}.md").read_text() for name in ("errors", "encoding")}
    classes = [name for name, value in vars(errors).items() if name.endswith("Error")]
    for name in classes:
        assert f"`{name}`" in result["errors"], name
    for key in ENCODING_KEYS:
        assert f"`{key}`" in result["encoding"], key
    pages = [(DOCS / f"reference/{name}.md").read_text() for name in ("api", "options")]
    for name in xr_nczarr.__all__:
        documented = any(f"xr_nczarr.{name}" in page for page in pages)
        assert documented or f"`{name}`" in result["errors"], name
    security = (DOCS / "explanation/security.md").read_text()
    for limit in dataclasses.fields(Limits):
        assert f"`{limit.name}`" in security, limit


def test_readme_links_are_absolute_and_valid() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pages, source = project["urls"]["Documentation"], project["urls"]["Source"]
    raw = source.replace("github.com", "raw.githubusercontent.com")
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    for link in links:
        assert link.startswith("https://"), link
        page = re.fullmatch(rf"{pages}en/\w+/([\w/-]+)\.html(?:#([\w-]+))?", link)
        file = re.fullmatch(rf"(?:{source}/blob|{raw})/main/(.+)", link)
        if page:
            text = (DOCS / f"{page[1]}.md").read_text()
            assert not page[2] or f"## {page[2]}" in text.lower(), link
        elif file:
            assert (ROOT / file[1]).is_file(), link
        elif link.startswith((pages, raw)):
            assert link == pages, link


def test_package_and_dependency_versions_agree_in_all_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / ".github/conda/recipe.yaml").read_text()
    versions = (DOCS / "reference/versions.md").read_text()
    assert f'version: "{xr_nczarr.__version__}"' in recipe
    assert f"\nversion: {xr_nczarr.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    for requirement in project["dependencies"]:
        name, floor = re.split(">=", requirement.partition(",")[0])
        conda = {"dask": "dask-core"}.get(name, name)
        assert f"- {conda} {requirement.removeprefix(name)}\n" in recipe
        label = {"numpy": "NumPy"}.get(name, name)
        assert f"| {label} | {floor} |" in versions
    readme = (ROOT / "README.md").read_text()
    for extra in project["optional-dependencies"].keys() - {"docs", "test"}:
        assert f"`{extra}`" in readme, extra
