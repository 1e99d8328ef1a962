"""Fixtures for the tests and for the examples in the documentation."""
