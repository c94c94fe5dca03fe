"""Benchmarks that compare grsgd's speed with other programs: ``python -m experiments.bench``.

The compared programs take turns in one run.
"""
