"""Simulation of training runs. The simulation runs the same schedules (generators that yield the objects they wait
for), algorithms and training loop as a training with real MPI. In a simulation, schedules, algorithms and training loop
run in simulated time, which the library SimPy keeps.

The module `network` describes a simulated network, `flows` divides the network's bandwidth among messages, and `fabric`
delivers messages to receivers. The module `driver` runs schedules, `compute` gives the seconds that a gradient takes,
and `run` simulates a whole training run.
"""
