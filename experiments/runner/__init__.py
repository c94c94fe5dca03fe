"""Code that all experiments share: specifications of runs, hosts, and functions that make and compare runs."""
