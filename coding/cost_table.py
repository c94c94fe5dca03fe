"""Text tables of the costs of all schemes at all redundancies, and of the redundancies at which the coded scheme sends
less than another scheme."""

from fractions import Fraction

from tabulate import tabulate

from coding.cost import SCHEMES, cost_in_models

WITHOUT_REDUNDANCY = ("ring", "ssgd-unicast", "ssgd-multicast")
"""Schemes whose cost does not depend on the redundancy r."""
COUNTINGS = {
    "once": ("once", "once"),
    "per receiver": ("per_receiver", "per_receiver"),
    "the paper's: coded once, others per receiver": ("once", "per_receiver"),
}
"""Ways to count packets to several receivers. Each entry has a name for tables, the property of `Cost` that counts the
coded scheme, and the property of `Cost` that counts all other schemes.

The third way is the comparison of formula (28) with formula (29) in Li, Xie, Mao, Xu, Zhu, Zhang 2021.
"""


def cost_table(n: int) -> str:
    """Return a text with two tables of the schemes' costs on ``n`` ranks. The first table of the text has the cost of
    each scheme at every redundancy, in units of M, the size of a gradient. The second table of the text has the
    redundancies at which the coded scheme sends less than another scheme."""
    header = ["r", "scheme", "sent by a rank", "received by a rank", "once", "per receiver", "packets of a rank"]
    rows = [row("any", name, 1, n) for name in WITHOUT_REDUNDANCY]
    for r in range(1, n + 1):
        rows += [row(r, name, r, n) for name in SCHEMES if name not in WITHOUT_REDUNDANCY]
        rows += [row(r, f"tolerant-{silent}", r, n) for silent in range(1, r)]
    return "\n".join(
        [
            f"Costs of one exchange of gradients between {n} rank{'s' * (n > 1)}, in units of M, the gradient's size.",
            "once: a packet to several receivers counts once; per receiver: it counts once per receiver. *: the least",
            "cost for this r, schemes for any r included. Unequal ranks: least to most. tolerant-s: steps end without",
            "s silent ranks.",
            "",
            tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=["right", "left"] + ["right"] * 5),
            "",
            "Redundancies r with which coded sends less than another scheme (in brackets: as much):",
            "",
            tabulate(comparison(n), ["scheme", *COUNTINGS], tablefmt="pipe", disable_numparse=True),
        ]
    )


def row(label, name: str, r: int, n: int) -> list[str]:
    cost = cost_in_models(name, n, r)
    totals = []
    for counting in ("once", "per_receiver"):
        total = getattr(cost, counting)
        others = (getattr(cost_in_models(other, n, r), counting) for other in SCHEMES)
        least = label != "any" and name in SCHEMES and total == min(others)
        totals.append(number(total) + " *" * least)
    return [str(label), name, spread(cost.sent), spread(cost.received), *totals, spread(cost.packets)]


def comparison(n: int) -> list[list[str]]:
    """Return the rows of a table of the redundancies with which the coded scheme sends less than another scheme. A row
    has the name of the scheme that is compared with the coded scheme, and a cell for each way of counting in
    `COUNTINGS`."""
    rows = []
    for name in SCHEMES:
        if name != "coded":
            cells = []
            for ours, theirs in COUNTINGS.values():
                less, equal = wins(name, n, ours, theirs)
                cells.append(" ".join([ranges(less)] + [f"({ranges(equal)})"] * bool(equal)))
            rows.append([name, *cells])
    return rows


def wins(other: str, n: int, ours: str, theirs: str) -> tuple[list[int], list[int]]:
    """Return two lists of redundancies. With the redundancies in the first list, the coded scheme sends less than the
    scheme ``other``. With the redundancies in the second list, the coded scheme sends as much as ``other``.

    ``ours`` is the name of the property of `Cost` (``once`` or ``per_receiver``) that counts the coded scheme, and
    ``theirs`` the name of the property that counts ``other``.
    """
    less, equal = [], []
    for r in range(1, n + 1):
        coded = getattr(cost_in_models("coded", n, r), ours)
        rival = getattr(cost_in_models(other, n, r), theirs)
        if coded < rival:
            less.append(r)
        elif coded == rival:
            equal.append(r)
    return less, equal


def number(value: Fraction | int) -> str:
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.3f}"


def spread(values) -> str:
    least, most = min(values), max(values)
    return number(least) if least == most else f"{number(least)} to {number(most)}"


def ranges(values: list[int]) -> str:
    """Return ascending ``values`` as text, for example "1, 3 to 5" for [1, 3, 4, 5]."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"
