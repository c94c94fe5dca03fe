"""Simulation of training runs. The schedules (generators that yield the objects they wait for), the algorithms and the
training loop are the same as on real MPI. In a simulation this code runs in simulated time, and the library SimPy keeps
the clock.

`network` describes a network, `flows` shares its bandwidth among messages, and `fabric` delivers messages to receivers.
`driver` runs schedules, `compute` gives the time of a gradient, and `run` puts a whole run together.
"""
