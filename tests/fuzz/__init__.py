"""Fuzzing: targets that accept any bytes, their permitted results, and mutants of a small corpus.

``python -m tests.fuzz --help`` explains how to run them.
"""
