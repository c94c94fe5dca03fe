"""How long a step takes, and so which redundancy is best: the paper's model, and what the true loads give.

Source of the first: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD), T = r Tcalc + Tcomm / r.
"""

from coding.load import load_in_models, redundancy

MEDIA = {
    "shared": lambda load: load.once,
    "switch": lambda load: max(map(max, load.sent, load.received)),
    "point-to-point": lambda load: max(map(max, load.copies, load.received)),
    "shared-point-to-point": lambda load: load.per_receiver,
}
"""What takes time, in units of M: everything on a shared medium; the busiest port of a switch that multicasts; and both
again when a packet to several receivers is sent several times."""


def paper_step_seconds(r: int, computing: float, communicating: float) -> float:
    """``computing``: seconds that a rank computes without redundancy; ``communicating``: seconds that are divided by r.

    The redundancy r is best exactly if r(r-1) <= communicating / computing <= r(r+1).
    """
    return r * computing + communicating / r


def step_seconds(
    scheme: str, n: int, r: int, computing: float, transfer: float, medium: str = "shared", per_packet: float = 0.0
) -> float:
    """Seconds of a step in which nothing overlaps, by the loads of `coding.load`.

    ``computing``: seconds that a rank computes without redundancy; ``transfer``: seconds for one M; ``medium``: a name
    of `MEDIA`; ``per_packet``: seconds that every packet of a rank costs besides.
    """
    load = load_in_models(scheme, n, r)
    amount = float(MEDIA[medium](load))
    return float(redundancy(scheme, n, r)) * computing + amount * transfer + max(load.packets) * per_packet
