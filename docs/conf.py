"""Configuration of Sphinx: ``python -m sphinx -W -b html docs docs/_build``."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

import xr_nczarr
from xr_nczarr.cli.arguments import Parser
from xr_nczarr.cli.commands import COMMANDS
from xr_nczarr.cli.main import overview

sys.path.insert(0, str(Path(__file__).parent))

from messages import page as message_page

Path(__file__).parent.joinpath("reference/messages.md").write_text(message_page(), "utf-8")

project = "xr_nczarr"
author = "the xr_nczarr developers"
copyright = f"2026, {author}"  # noqa: A001 (Sphinx's name)
release = xr_nczarr.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"xr_nczarr {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_logo = html_favicon = "_static/logo.svg"
html_theme_options = {  # for the link "Edit this page"
    "source_repository": "https://github.com/xr-nczarr/xr_nczarr/",
    "source_branch": "main",
    "source_directory": "docs/",
}

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "xarray": ("https://docs.xarray.dev/en/stable", None),
    "dask": ("https://docs.dask.org/en/stable", None),
    "distributed": ("https://distributed.dask.org/en/stable", None),
    "fsspec": ("https://filesystem-spec.readthedocs.io/en/latest", None),
    "zarr": ("https://zarr.readthedocs.io/en/stable", None),
}
intersphinx_timeout = 10

# The copy button omits prompts and output.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_exclude = ".linenos, .go"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# The notebooks are stored without outputs. Every build executes them, so that the pages show the
# outputs of this version of the package.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

autodoc_typehints = "none"  # the signatures already show the types
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
default_role = "py:obj"


class CommandHelp(Directive):
    """The directive ``nczarr-help``, which inserts the ``--help`` output of each command."""

    def run(self) -> list[nodes.Node]:
        """Return a section with the help of each command."""
        os.environ["COLUMNS"] = "90"
        sections: list[nodes.Node] = [literal(overview())]
        for name, add in COMMANDS.items():
            section = nodes.section("", nodes.title("", name), ids=[f"nczarr-{name}"])
            section += literal(Parser(f"nczarr {name}", add).format_help())
            sections.append(section)
        return sections


def literal(text: str) -> nodes.literal_block:
    """Return a literal block that contains the text."""
    return nodes.literal_block(text, text, language="text")


def is_reachable(record: logging.LogRecord) -> bool:
    """Return False for the warning that an inventory of another project cannot be fetched.

    Without a network, the documentation is built without links to other projects.
    """
    return "failed to reach any of the inventories" not in str(record.msg)


def setup(app: Any) -> None:
    """Register the directive, and ignore the warnings in a build without network access."""
    app.add_directive("nczarr-help", CommandHelp)
    logging.getLogger("sphinx.sphinx.ext.intersphinx").addFilter(is_reachable)
