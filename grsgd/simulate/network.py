"""The description of a simulated network: from a command line such as ``1gbit,50us``, or from a TOML file."""

import math
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from grsgd.config.complaints import describe_one, unknown_key
from grsgd.config.sections import integer_keys
from grsgd.errors import ConfigError
from grsgd.units import as_duration, as_rate, duration, rate

EAGER_BYTES = 65536
"""Messages up to this size leave at once, longer ones when a receive for them has been posted: Open MPI's over TCP."""
MAX_SIGMA = 20.0
"""The largest sigma of the logarithm of a computation's seconds: one in six then takes more than e^20, half a
billion, times as long as the median. With far larger ones times would be too large for floating-point numbers."""


class MissingLink(ConfigError):
    """There is a message between two ranks that the network does not connect."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


Rate = Annotated[float, BeforeValidator(rate)]
Duration = Annotated[float, BeforeValidator(duration)]
Rank = Annotated[int, Field(ge=0, strict=True)]


class LinkSpec(Section):
    """The link from one rank to another, where it differs from the rest."""

    source: Rank = Field(alias="from")
    dest: Rank = Field(alias="to")
    bandwidth: Rate | None = None
    latency: Duration | None = None
    both_ways: bool = Field(False, strict=True)


class PortSpec(Section):
    """The port of a rank, where it differs from the others."""

    rank: Rank
    bandwidth: Rate


class ComputeSpec(Section):
    """Seconds of computation per step, measured by ``grsgd calibrate``: median, and sigma of their logarithm.

    slowdown: by rank, the factor by which its computation takes longer (less than 1: shorter); 1 for the others.
    what: what was measured, for the reader.
    """

    median: float = Field(gt=0, allow_inf_nan=False)
    sigma: float = Field(0.0, ge=0, le=MAX_SIGMA, allow_inf_nan=False)
    slowdown: Annotated[
        dict[Rank, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(integer_keys)
    ] = {}
    what: str = ""


class NetworkSpec(Section):
    """A network between ranks.

    medium: ``switch``, each rank has a full-duplex port; ``shared``, all messages share one medium; ``links``, a
    switch on which only the ranks named by a ``[[link]]`` can talk to each other.
    multicast: whether one copy on the way out reaches all receivers; a shared medium always has it.
    fairness: of two messages that share a port, the rate of the one that began later in that of the other; 1: equal.
    """

    medium: Literal["switch", "shared", "links"] = "switch"
    bandwidth: Rate
    latency: Duration
    multicast: bool = Field(False, strict=True)
    eager_bytes: int = Field(EAGER_BYTES, ge=0, strict=True)
    fairness: float = Field(1.0, ge=0.1, le=1)
    link: tuple[LinkSpec, ...] = ()
    port: tuple[PortSpec, ...] = ()
    compute: ComputeSpec | None = None
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def former_names(cls, content):
        """Files that were written before may call ``fairness`` seniority."""
        if isinstance(content, dict) and "seniority" in content and "fairness" not in content:
            return {("fairness" if key == "seniority" else key): value for key, value in content.items()}
        return content

    @model_validator(mode="after")
    def fits(self):
        if self.medium == "shared" and self.port:
            raise ValueError("a shared medium has no ports")
        if self.medium == "links" and not self.link:
            raise ValueError("medium = 'links' needs at least one [[link]]")
        ports = [port.rank for port in self.port]
        for rank in ports:
            if ports.count(rank) > 1:
                raise ValueError(f"port: that of rank {rank} is given twice")
        return self

    def model_post_init(self, _):
        links = {}
        for link in self.link:
            ends = link.source, link.dest
            for source, dest in (ends, ends[::-1]) if link.both_ways else (ends,):
                if (source, dest) in links:
                    raise ValueError(f"link: from {source} to {dest} is given twice")
                links[source, dest] = link
        self.__dict__["_links"] = links  # a frozen model's private table, not part of its content
        self.__dict__["_ports"] = {port.rank: port.bandwidth for port in self.port}

    def port_bandwidth(self, rank: int) -> float:
        """Bytes/s of a rank's port, in each direction."""
        return self._ports.get(rank, self.bandwidth) if self.medium != "shared" else math.inf

    def link_bandwidth(self, source: int, dest: int) -> float:
        """Bytes/s that the link itself allows; infinite where only the ports limit. Raises MissingLink."""
        link = self._link(source, dest)
        return math.inf if link is None or link.bandwidth is None else link.bandwidth

    def link_latency(self, source: int, dest: int) -> float:
        """Seconds from the last byte's departure to its arrival. Raises MissingLink."""
        link = self._link(source, dest)
        return self.latency if link is None or link.latency is None else link.latency

    def _link(self, source: int, dest: int) -> LinkSpec | None:
        link = self._links.get((source, dest))
        if link is None and self.medium == "links" and source != dest:
            there = ", ".join(str(d) for s, d in sorted(self._links) if s == source) or "none"
            raise MissingLink(f"{self.name}: no link from rank {source} to rank {dest}; links from {source}: {there}")
        return link

    def check_ranks(self, ranks: int):
        """Raise ConfigError for links and ports of ranks that do not exist."""
        named = [(f"link from {link.source} to {link.dest}", max(link.source, link.dest)) for link in self.link]
        named += [(f"port of rank {port.rank}", port.rank) for port in self.port]
        slowdown = self.compute.slowdown if self.compute else {}
        named += [(f"compute.slowdown of rank {rank}", rank) for rank in slowdown]
        for what, rank in named:
            if rank >= ranks:
                raise ConfigError(f"{self.name}: {what}: there are {ranks} ranks; allowed: 0 to {ranks - 1}")

    def summary(self) -> str:
        """Return one line for the run file."""
        parts = [self.medium, as_rate(self.bandwidth), as_duration(self.latency)]
        parts += ["multicast"] if self.multicast else []
        parts += [f"fairness {self.fairness:g}"] if self.fairness != 1 else []
        parts += [f"{len(self.link)} links of their own"] if self.link else []
        parts += [f"{len(self.port)} ports of their own"] if self.port else []
        return ", ".join(parts)


def network(text: str = "switch") -> NetworkSpec:
    """Return the network of ``--network [MEDIUM,][RATE,LATENCY]``; raises ConfigError.

    ``MEDIUM`` is ``switch``, ``shared`` or a TOML file, whose bandwidth and latency ``RATE,LATENCY`` replace.
    """
    *medium, rate, latency = text.split(",") if "," in text else [text, "", ""]
    if len(medium) > 1 or (not medium and not latency):
        raise ConfigError(f"--network {text!r}: give a rate and a latency, such as 1gbit,50us or shared,1gbit,50us")
    given = {"bandwidth": rate, "latency": latency} if "," in text else {}
    medium = medium[0] if medium else "switch"
    if medium in ("switch", "shared"):
        where, content = "--network", {"medium": medium, "bandwidth": "1gbit", "latency": "50us"} | given
    else:
        where, content = medium, read(medium) | given
    try:
        return NetworkSpec(**{"name": where} | content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(complaint(one) for one in error.errors())}") from None


def bookkeeping_network(spec: NetworkSpec, **more) -> NetworkSpec:
    """Return the network of messages that are no part of an algorithm: the latency of ``spec`` and no bandwidth used;
    ``more``: further fields."""
    return NetworkSpec(bandwidth="inf bit", latency=f"{spec.latency!r} s", **more)


def complaint(error: dict) -> str:
    """Return what is wrong with a network, one thing of it, as a sentence."""
    path = [str(part) for part in error["loc"]]
    parts = {"link": LinkSpec, "port": PortSpec, "compute": ComputeSpec}
    section = parts.get(path[0]) if len(path) > 1 else NetworkSpec
    if error["type"] == "extra_forbidden" and section is not None:
        allowed = [field.alias or name for name, field in section.model_fields.items() if name != "name"]
        return unknown_key(".".join(path), path[-1], allowed)
    if error["type"] == "tuple_type":
        return f"{path[0]}: write [[{path[0]}]] once for each"
    return describe_one(error, NetworkSpec, "").removeprefix(": ")


def read(path: str) -> dict:
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--network {path}: {reason}; allowed: switch, shared, or a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
