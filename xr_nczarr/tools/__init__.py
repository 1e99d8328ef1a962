"""The commands of ``nczarr``, each as a function that returns a value.

The value prints as text. Some values also have an HTML representation for notebooks (`_repr_html_`)
and a JSON one (`as_dict`).
"""
