"""Compare the speed with that of other libraries: ``python -m tests.benchmarks``."""
