"""Simulated time: the schedules, algorithms and training loop that run on real MPI, driven by SimPy.

`network` says what a network looks like, `flows` how messages share it, `fabric` how they find their receivers,
`driver` how schedules wait, `compute` how long a gradient takes, and `run` puts a whole run together.
"""
