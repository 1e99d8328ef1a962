"""The documentation: ``python -m sphinx -W -b html docs docs/_build``."""

import os
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

import xr_nczarr
from xr_nczarr.cli.main import _parser

project = "xr_nczarr"
author = "the xr_nczarr developers"
copyright = f"2026, {author}"  # noqa: A001 (Sphinx's name)
release = xr_nczarr.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"xr_nczarr {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# The notebooks are kept without outputs: what a page shows, this version of the package gave.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

autodoc_typehints = "none"  # signatures show them
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
default_role = "py:obj"


class CommandHelp(Directive):
    """``nczarr-help``: what ``--help`` prints, of the command and of each of its commands."""

    def run(self) -> list[nodes.Node]:
        """Give a section for each command."""
        os.environ["COLUMNS"] = "90"
        parser = _parser()
        (commands,) = (a for a in parser._actions if isinstance(a.choices, dict))
        found: list[nodes.Node] = [literal(parser.format_help())]
        for name, command in commands.choices.items():
            section = nodes.section("", nodes.title("", name), ids=[f"nczarr-{name}"])
            section += literal(command.format_help())
            found.append(section)
        return found


def literal(text: str) -> nodes.literal_block:
    """Give text as a block that is shown as it is."""
    return nodes.literal_block(text, text, language="text")


def setup(app: Any) -> None:
    """Make the directive known."""
    app.add_directive("nczarr-help", CommandHelp)
