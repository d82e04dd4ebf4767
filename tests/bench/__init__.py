"""Benchmarks. `python -m tests.bench.NAME [--json FILE] [--quick]`; they never fail on a slow machine."""
