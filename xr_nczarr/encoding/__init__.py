"""Encode the values of xarray variables, and build the array nodes in which they are stored."""
