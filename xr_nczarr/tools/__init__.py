"""The commands of ``nczarr``, each as a function that returns a value.

The value prints as text, and where it says more that way shows itself in a notebook (`_repr_html_`)
and to a machine (`as_dict`).
"""
