"""Simulated networks of cables. Each kind of network determines over which cables a message goes from one rank to
another."""
