"""Coded multicast of gradients: placements, plans, packets and what they cost. It knows neither training nor MPI: the
schemes that send are in `grsgd.comm.coded`."""
