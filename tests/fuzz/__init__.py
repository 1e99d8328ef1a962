"""Fuzzing: targets that take any bytes, what may come of them, and mutants of a small corpus.

``python -m tests.fuzz --help`` says how to run them.
"""
