"""Implement most ``nczarr`` subcommands, each as a function that returns a result object.

Every result can be printed as text. Every result except a `Cdl` (from `dump`) can also be rendered
as HTML in notebooks (`_repr_html_`) and converted to JSON values (`as_dict`).
"""
