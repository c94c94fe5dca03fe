"""Networks of cables. Each network determines over which cables a message goes from one rank to another."""
