"""Coded multicast of gradients: placements, plans, packets and their costs.

This package knows neither training nor MPI; `grsgd.comm.coded` has the schemes that send packets.
"""
