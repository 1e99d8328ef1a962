"""Zarr documents to the model and back, without I/O: one module for each version."""
