"""Speed against other programs, measured side by side in one run. Start with ``python -m experiments.bench``."""
