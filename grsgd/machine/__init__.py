"""Facts about the machine on which a process runs, from Linux's files, and the cores to which a rank is bound."""
