"""A cluster on one machine: hosts with a network, a name and a share of the processor each. Linux, and root."""
