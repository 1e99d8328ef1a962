"""Side-by-side measurements with the peers: ``python -m tests.benchmarks``. Never pass or fail."""
