"""Simulation of runs: the same schedules (generators that yield the objects they wait for), algorithms and training
loop as on real MPI run in simulated time, which SimPy keeps.

`network` describes a network, `flows` shares its bandwidth among messages, and `fabric` delivers messages to receivers.
`driver` runs schedules, `compute` gives the time of a gradient, and `run` puts a whole run together.
"""
