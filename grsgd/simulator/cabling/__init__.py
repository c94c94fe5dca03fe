"""Simulated networks of cables. A network of cables determines the route of cables over which a message goes from one
rank to another."""
