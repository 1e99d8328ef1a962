"""Fuzzing of functions that must accept or reject any bytes, with mutants of a small corpus.

``python -m tests.fuzz --help`` explains how to run it.
"""
