"""Cores, NUMA nodes and GPUs of the machine on which a process runs, and the binding of a rank to its cores."""
