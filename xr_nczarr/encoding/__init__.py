"""Encode xarray variables as stored values, and choose the arrays that store them."""
