"""Measurements compared with peers: ``python -m tests.benchmarks``. They never pass or fail."""
