"""A cluster on one machine: each host has its own network, name and share of the processor. Needs Linux and root."""
