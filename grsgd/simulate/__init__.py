"""Simulated time: SimPy drives the same schedules, algorithms and training loop that run on real MPI.

`network` describes a network, `flows` shares its bandwidth among messages, and `fabric` delivers messages to receivers.
`driver` runs schedules, `compute` gives the time of a gradient, and `run` puts a whole run together.
"""
