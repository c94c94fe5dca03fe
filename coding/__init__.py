"""Coded multicast of gradients: placements, plans, packets and their costs.

This package depends neither on the training code nor on MPI. `grsgd.comm.coded` has the schemes that send the packets.
"""
