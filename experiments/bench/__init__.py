"""Benchmarks of grsgd's speed against other programs, which take turns in one run: ``python -m experiments.bench``."""
