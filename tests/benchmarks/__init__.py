"""Benchmarks that compare xr_nczarr with other libraries: ``python -m tests.benchmarks``."""
