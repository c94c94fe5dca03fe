"""``grsgd doctor``: examination of hosts, launcher and MPI library before a training, in 30 seconds at most."""
