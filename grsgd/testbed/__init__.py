"""Testbeds: emulated clusters of several hosts on one machine. Each emulated host has its own network, host name and
share of the machine's processor time. A testbed needs Linux and the rights of root."""
