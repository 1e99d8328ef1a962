"""Fuzzing: functions that must cope with any bytes, and mutants of a small corpus.

``python -m tests.fuzz --help`` explains how to run them.
"""
