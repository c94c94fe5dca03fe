"""Ready-made networks of cables, which the user chooses by a short text such as ``torus:8x8x8``."""

import re

from grsgd.errors import did_you_mean
from grsgd.simulator.cabling.cable import Cabling
from grsgd.simulator.cabling.dragonfly import Dragonfly
from grsgd.simulator.cabling.fat_tree import FatTree
from grsgd.simulator.cabling.hosts import HostCards
from grsgd.simulator.cabling.torus import Torus

KINDS: dict[str, type[Cabling]] = {kind.form.partition(":")[0]: kind for kind in (FatTree, Torus, Dragonfly, HostCards)}
FORMS = ", ".join(kind.form for kind in KINDS.values())
"""Text that lists an example of each kind of ready-made network, such as ``torus:8x8x8``, for error messages."""


def is_ready_made(text: str) -> bool:
    """Return True if ``text`` begins with the name of a ready-made network in `KINDS` and a colon."""
    return text.partition(":")[0] in KINDS and ":" in text


def read(text: str) -> tuple[type[Cabling], tuple[int, ...]]:
    """Return the class and the size parameters of the network of cables that ``text`` describes, for example ``Torus,
    (8, 8, 8)``. Raise ValueError if ``text`` describes no ready-made network."""
    name, _, rest = text.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"{text!r} is unknown{did_you_mean(name, KINDS)}; allowed: {FORMS}")
    pattern = ",".join(f"{letter}=([0-9]+)" for letter in kind.names) or "[0-9]+(?:x[0-9]+)*"
    match = re.fullmatch(pattern, rest, re.ASCII)
    if not match:
        raise ValueError(f"{text!r}: write it as {kind.form}")
    numbers = tuple(map(int, match.groups() or rest.split("x")))
    try:
        kind.check(*numbers)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; such as {kind.form}") from None
    return kind, numbers
