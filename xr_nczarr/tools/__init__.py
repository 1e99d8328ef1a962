"""Implement the commands of ``nczarr`` as functions that return their results.

Results print as text. Some can also be converted to HTML for notebooks (`_repr_html_`) and to JSON
(`as_dict`).
"""
