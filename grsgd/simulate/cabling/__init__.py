"""Networks of cables. Each says over which cables a message goes from one rank to another."""
