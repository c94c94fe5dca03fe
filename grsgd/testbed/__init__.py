"""Emulated cluster on one machine. Each host of the cluster has its own network, host name and share of the processor.
Needs Linux and root."""
