"""Package of ``grsgd doctor``, which examines hosts, launcher and MPI library before a training, in at most 30
seconds."""
