"""Testbed: an emulated cluster on one machine. Each host of the cluster has its own network, host name and share of the
processor. A testbed needs Linux and root."""
