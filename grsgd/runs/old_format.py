"""Run files of format 1, which said less of the algorithm: all that is known of its options is in this module."""

import tomllib

from grsgd.runs.ending import end_attributes

LABELLED = ("strategy", "scheme")
"""Options of ``[algorithm]`` that were as good as its name."""
COMPARED = {"mode": "pair", "centre": "server", "rho": 1}
"""Options of ``[algorithm]`` that decide what an exchange sends or what the data of a rank are, with the defaults."""


RENAMED = {"progress": "progress_mode"}
"""Attributes that have another name now."""


def from_format_1(attributes: dict) -> dict:
    """Return the attributes that format 2 has for a run, from those of format 1.

    Those that cannot be known, ``synchronous`` and ``exact_gradient``, are left out.
    """
    options = algorithm_options(attributes.get("config"))
    label = " ".join([str(attributes.get("algorithm", "")), *(str(options[key]) for key in LABELLED if key in options)])
    comparison = "; ".join(f"{key} = {options.get(key, default)}" for key, default in COMPARED.items())
    new = {RENAMED.get(key, key): value for key, value in attributes.items() if key != "stopped"}
    new |= {"label": label, "comparison": comparison, "depends_on_values": bool(options.get("adaptive"))}
    reason = attributes.get("stopped")
    return new | (end_attributes(reason) if isinstance(reason, str) else {})


def algorithm_options(config) -> dict:
    """Return the section ``[algorithm]`` of a configuration's text; empty if the text is none."""
    if not isinstance(config, str):
        return {}
    try:
        options = tomllib.loads(config).get("algorithm")
    except (ValueError, RecursionError):
        return {}
    return options if isinstance(options, dict) else {}
