"""Networks of cables, which tell over which cables a message goes from one rank to another."""
