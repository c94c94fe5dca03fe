"""Networks of cables: which of them a message passes on its way from one rank to another."""
