"""Run files of format 1, which recorded less about the algorithm: this module holds all knowledge of its options."""

import tomllib

from grsgd.runs.ending import end_attributes

LABELLED = ("strategy", "scheme")
"""Options of ``[algorithm]`` that belonged to the algorithm's name."""
COMPARED = {"mode": "pair", "centre": "server", "rho": 1}
"""Options of ``[algorithm]`` that decide the messages of an exchange or the data of a rank, with their defaults."""


RENAMED = {"progress": "progress_mode"}
"""Attributes that have another name now."""


def from_format_1(attributes: dict) -> dict:
    """Return the attributes of format 2 for a run, from its attributes of format 1.

    The attributes ``synchronous`` and ``exact_gradient`` cannot be known, so they are left out.
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
