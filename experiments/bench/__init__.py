"""Speed compared with other programs, measured in turns in one run. Start with ``python -m experiments.bench``."""
