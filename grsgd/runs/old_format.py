"""Conversion of run files of format 1, in which some attributes about the algorithm are missing. The attributes that
are missing in format 1 are derived from the algorithm's options."""

import tomllib

from grsgd.runs.ending import end_attributes

LABELLED = ("strategy", "scheme")
"""Options of ``[algorithm]`` whose values are part of the run's label."""
COMPARED = {"mode": "pair", "centre": "server", "rho": 1}
"""Options of ``[algorithm]``, with their defaults, that must be equal before the bytes of two runs can be compared."""


RENAMED = {"progress": "progress_mode"}
"""Dictionary from the old name of an attribute in run files of format 1 to its new name."""


def from_format_1(attributes: dict) -> dict:
    """Return a run's attributes in format 2, from its attributes in format 1.

    The attributes ``synchronous`` and ``exact_gradient`` are left out, because they cannot be derived from format 1.
    """
    options = algorithm_options(attributes.get("config"))
    label = " ".join([str(attributes.get("algorithm", "")), *(str(options[key]) for key in LABELLED if key in options)])
    comparison = "; ".join(f"{key} = {options.get(key, default)}" for key, default in COMPARED.items())
    new = {RENAMED.get(key, key): value for key, value in attributes.items() if key != "stopped"}
    new |= {"label": label, "comparison": comparison, "depends_on_values": bool(options.get("adaptive"))}
    reason = attributes.get("stopped")
    return new | (end_attributes(reason) if isinstance(reason, str) else {})


def algorithm_options(config) -> dict:
    """Return the section ``[algorithm]`` of a configuration's text; empty if the text has none."""
    if not isinstance(config, str):
        return {}
    try:
        options = tomllib.loads(config).get("algorithm")
    except (ValueError, RecursionError):
        return {}
    return options if isinstance(options, dict) else {}
