"""How long a step takes, and so which redundancy is best: the paper's model, and what the true costs give.

Source of the first: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD), T = r Tcalc + Tcomm / r.
"""

from coding.cost import cost_in_models, redundancy

MEDIA = {
    "shared": lambda cost: cost.once,
    "switch": lambda cost: max(map(max, cost.sent, cost.received)),
    "point-to-point": lambda cost: max(map(max, cost.copies, cost.received)),
    "shared-point-to-point": lambda cost: cost.per_receiver,
}
"""The part of the cost that takes time, in units of M: everything on a shared medium; the busiest port of a switch that
multicasts; and both again when a packet to several receivers is sent several times."""


def paper_step_seconds(r: int, computing: float, communicating: float) -> float:
    """``computing``, ``communicating``: seconds that SSGD by multicast computes and communicates in a step (section
    3.2.4).

    The redundancy r is best exactly if r(r-1) <= communicating / computing <= r(r+1).
    """
    return r * computing + communicating / r


def step_seconds(
    scheme: str, n: int, r: int, computing: float, transfer: float, medium: str = "shared", per_packet: float = 0.0
) -> float:
    """Seconds of a step in which nothing overlaps, by the costs of `coding.cost`.

    ``computing``: seconds that a rank computes without redundancy; ``transfer``: seconds for one M; ``medium``: a name
    of `MEDIA`; ``per_packet``: seconds that every packet of a rank costs besides.
    """
    cost = cost_in_models(scheme, n, r)
    amount = float(MEDIA[medium](cost))
    return float(redundancy(scheme, n, r)) * computing + amount * transfer + max(cost.packets) * per_packet
