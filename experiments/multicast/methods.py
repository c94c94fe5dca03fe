"""The methods that are compared on a shared medium, with the number of bytes that each method should send."""

import json
from typing import NamedTuple

from coding.cost import BYTES_PER_ELEMENT, cost_in_bytes

IP, MPI = "ip-multicast", "multicast"
LOSSES = (0.01, 0.05)


class Method(NamedTuple):
    """A method that is compared with other methods.

    ``scheme``: the method's name in `coding.cost`. ``transport``: how packets are sent (by MPI or by IP multicast);
    None for all-reduces.
    ``loss``: fraction of the datagrams that is lost on purpose (0 to 1).
    """

    title: str
    scheme: str
    r: int = 1
    transport: str | None = None
    loss: float = 0.0

    def overrides(self) -> list[str]:
        """Return the overrides by which the configuration ``run.toml`` becomes this method's configuration."""
        if self.scheme == "ring":
            return ["algorithm.name='ring_allreduce'"]
        name = "ssgd" if self.scheme == "ssgd-multicast" else "cssgd"
        found = {"name": name, "r": self.r, "transport": self.transport}
        if name == "cssgd":
            found["scheme"] = self.scheme
        if self.loss:
            found["loss"] = self.loss
        return [f"algorithm.{key}={json.dumps(value)}" for key, value in found.items()]

    def models(self, ranks: int, parameters: int) -> float:
        """Return the bytes that all ranks send in a step, divided by the bytes of the model.

        A packet to several receivers counts once, or once per receiver if MPI sends a copy to each receiver.
        """
        cost = cost_in_bytes(self.scheme, ranks, self.r, parameters)
        sent = cost.per_receiver if self.transport == MPI else cost.once
        return sent / (BYTES_PER_ELEMENT * parameters)


def methods(ranks: int) -> list[Method]:
    """Return all methods for ``ranks`` ranks.

    The first method in the list is the reference, and the second method repeats the reference as a control.
    """
    half, r = ranks // 2, ranks - 1
    coded = f"cssgd r={r}"
    return [
        Method(RING, "ring"),
        Method(AGAIN, "ring"),
        Method(f"{coded}, MPI", "coded", r, MPI),
        Method(coded, "coded", r, IP),
        *(Method(f"{coded}, {loss:.0%} lost", "coded", r, IP, loss) for loss in LOSSES),
        Method(f"grouped-direct r={half}", "grouped-direct", half, IP),
        Method(f"grouped-rs r={half}", "grouped-rs", half, IP),
        Method("ssgd", "ssgd-multicast", 1, IP),
    ]


RING, AGAIN = "ring_allreduce", "ring_allreduce again"
