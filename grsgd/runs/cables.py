"""Table of the busiest cables of a simulated network, for reports of a single run."""

import numpy as np

from grsgd.runs.measures import seconds
from grsgd.runs.numbers import UNKNOWN, human_bytes, share
from grsgd.runs.run_file import Run
from grsgd.runs.table import TextColumn

SHOWN = 8
"""Largest number of rows of the table of cables. A row is a cable in one direction."""
KINDS = {"from": "U", "to": "U", "bandwidth": "f", "bytes": "i"}


def cables_of(run: Run) -> dict[str, np.ndarray] | None:
    """Return the group ``traffic/cables`` of a run; None if the group is missing or empty, or has another form than
    docs/reference/run-file.md describes."""
    traffic = run.extra.get("traffic", {})
    group = traffic.get("cables", {}) if isinstance(traffic, dict) else {}
    if not isinstance(group, dict) or not all(isinstance(group.get(name), np.ndarray) for name in KINDS):
        return None
    cables = {name: group[name] for name in KINDS}
    shapes = {array.shape for array in cables.values()}
    if len(shapes) > 1 or len(shapes.pop()) != 1 or any(cables[name].dtype.kind != KINDS[name] for name in KINDS):
        return None
    return cables if cables["bytes"].size else None


def busiest_cables(run: Run) -> tuple[str, list[TextColumn]] | None:
    """Return a heading and the columns of a table of the busiest cables; None for a run without cables.

    Each direction of a cable has its own row. The busy time of a direction of a cable is the number of its bytes,
    divided by the cable's bandwidth.
    """
    cables, time = cables_of(run), seconds(run)
    if cables is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = cables["bytes"] / cables["bandwidth"] / time
    order = np.lexsort((-cables["bytes"], -busy))[:SHOWN]
    shown, busy = {name: array[order] for name, array in cables.items()}, busy[order]
    heading = f"The busiest of {len(cables['bytes'])} cables, each direction for itself:"
    return heading, [
        TextColumn("from", "from", [str(place) for place in shown["from"]], is_number=False),
        TextColumn("to", "to", [str(place) for place in shown["to"]], is_number=False),
        TextColumn("bytes", "bytes", [human_bytes(int(nbytes)) for nbytes in shown["bytes"]]),
        TextColumn("busy", "busy [%]", [share(part) if np.isfinite(part) else UNKNOWN for part in busy]),
    ]
