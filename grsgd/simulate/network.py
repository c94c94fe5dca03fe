"""What a simulated network looks like: from a command line such as ``1gbit,50us``, or from a TOML file."""

import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from grsgd.config import ConfigError, describe_one, integer_keys, unknown_key

RATES = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
EAGER_BYTES = 65536
"""Messages up to this size leave at once, longer ones when a receive for them has been posted: Open MPI's over TCP."""
GREATEST_SIGMA = 20.0
"""Of the logarithm of a computation's seconds: one in six then takes more than e^20, half a billion, times as long as
the median. With far greater ones times would be too large for floating-point numbers."""


class MissingLink(ConfigError):
    """A message between two ranks that the network does not join."""


def quantity(text: str, units: dict[str, float], what: str) -> float:
    """``text``, a number with a unit, in the base unit; raises ValueError."""
    match = re.fullmatch(r"\s*([-+]?[\d.]+(?:e[-+]?\d+)?|inf)\s*([a-z]*)\s*", str(text), re.IGNORECASE)
    allowed = ", ".join(units)
    if not match:
        raise ValueError(f"{what} {text!r}: not a number with a unit ({allowed})")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{what} {text!r}: no unit; allowed: {allowed}")
    if unit.lower() not in units:
        raise ValueError(f"{what} {text!r}: unknown unit {unit!r}; allowed: {allowed}")
    try:
        return float(number) * units[unit.lower()]
    except ValueError:
        raise ValueError(f"{what} {text!r}: {number!r} is not a number") from None


def rate(text: str) -> float:
    """Bytes per second of a text such as ``"25gbit"`` (bits per second, units of 1000, as with ``tc``)."""
    value = quantity(text, RATES, "rate") / 8
    if not value > 0:
        raise ValueError(f"rate {text!r}: must be positive")
    return value


def duration(text: str) -> float:
    """Seconds of a text such as ``"50us"``."""
    value = quantity(text, TIMES, "time")
    if not 0 <= value < math.inf:
        raise ValueError(f"time {text!r}: must be 0 or more, and finite")
    return value


def in_units(value: float, units: dict[str, float]) -> str:
    """``value``, in the base unit, as a text of three or four digits that `quantity` reads: ``"3.21gbit"``."""
    unit = max((unit for unit in units if units[unit] <= value), key=units.get, default=min(units, key=units.get))
    number = value / units[unit]
    return (f"{number:.0f}" if number >= 1000 else f"{number:.4g}") + unit


def as_rate(bytes_per_second: float) -> str:
    """The text that `rate` reads."""
    return in_units(bytes_per_second * 8, RATES)


def as_duration(seconds: float) -> str:
    """The text that `duration` reads."""
    return in_units(seconds, TIMES)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


Rate = Annotated[float, BeforeValidator(rate)]
Duration = Annotated[float, BeforeValidator(duration)]
Rank = Annotated[int, Field(ge=0, strict=True)]


class Link(Section):
    """The way from one rank to another, where it differs from the rest."""

    source: Rank = Field(alias="from")
    dest: Rank = Field(alias="to")
    bandwidth: Rate | None = None
    latency: Duration | None = None
    both_ways: bool = Field(False, strict=True)


class PortSpec(Section):
    """A rank's port, where it differs from the others."""

    rank: Rank
    bandwidth: Rate


class ComputeSpec(Section):
    """Seconds of computation per step, measured by ``grsgd calibrate``: median, and sigma of their logarithm.

    slowdown: by rank, the factor by which its computation takes longer (less than 1: shorter); 1 for the others.
    what: what was measured, for the reader.
    """

    median: float = Field(gt=0, allow_inf_nan=False)
    sigma: float = Field(0.0, ge=0, le=GREATEST_SIGMA, allow_inf_nan=False)
    slowdown: Annotated[
        dict[Rank, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(integer_keys)
    ] = {}
    what: str = ""


class NetworkSpec(Section):
    """A network between ranks.

    medium: ``switch``, each rank has a full-duplex port; ``shared``, all messages share one medium; ``links``, a
    switch on which only the ranks named by a ``[[link]]`` can talk to each other.
    multicast: whether one copy on the way out reaches all receivers; a shared medium always has it.
    seniority: of two messages that share a port, the rate of the one that began later in that of the other; 1: equal.
    """

    medium: Literal["switch", "shared", "links"] = "switch"
    bandwidth: Rate
    latency: Duration
    multicast: bool = Field(False, strict=True)
    eager_bytes: int = Field(EAGER_BYTES, ge=0, strict=True)
    seniority: float = Field(1.0, ge=0.1, le=1)
    link: tuple[Link, ...] = ()
    port: tuple[PortSpec, ...] = ()
    compute: ComputeSpec | None = None
    name: str = ""

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
        self.__dict__["_links"] = links  # a frozen model's private way to look up, not part of its content
        self.__dict__["_ports"] = {port.rank: port.bandwidth for port in self.port}

    def port_bandwidth(self, rank: int) -> float:
        """Bytes/s of a rank's port, each way."""
        return self._ports.get(rank, self.bandwidth) if self.medium != "shared" else math.inf

    def link_bandwidth(self, source: int, dest: int) -> float:
        """Bytes/s that the link itself allows; infinite where only the ports limit. Raises MissingLink."""
        link = self._link(source, dest)
        return math.inf if link is None or link.bandwidth is None else link.bandwidth

    def link_latency(self, source: int, dest: int) -> float:
        """Seconds from the last byte's departure to its arrival. Raises MissingLink."""
        link = self._link(source, dest)
        return self.latency if link is None or link.latency is None else link.latency

    def _link(self, source: int, dest: int) -> Link | None:
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
        """In one line, for the run file."""
        words = [self.medium, f"{self.bandwidth * 8:g} bit/s", f"{self.latency:g} s"]
        words += ["multicast"] if self.multicast else []
        words += [f"seniority {self.seniority:g}"] if self.seniority != 1 else []
        words += [f"{len(self.link)} links of their own"] if self.link else []
        words += [f"{len(self.port)} ports of their own"] if self.port else []
        return ", ".join(words)


def network(text: str | None, topology: str) -> NetworkSpec:
    """The network of ``--network RATE,LATENCY`` and ``--topology switch|shared|FILE.toml``; raises ConfigError.

    With a file, ``text`` replaces the file's bandwidth and latency.
    """
    given = {}
    if text is not None:
        parts = text.split(",")
        if len(parts) != 2:
            raise ConfigError(f"--network {text!r}: give a rate and a latency, such as 1gbit,50us")
        given = {"bandwidth": parts[0], "latency": parts[1]}
    if topology in ("switch", "shared"):
        where, content = "--network", {"medium": topology, "bandwidth": "1gbit", "latency": "50us"} | given
    else:
        where, content = topology, read(topology) | given
    try:
        return NetworkSpec(**{"name": where} | content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(complaint(one) for one in error.errors())}") from None


def complaint(error: dict) -> str:
    """One thing that is wrong with a network, in words."""
    path = [str(part) for part in error["loc"]]
    section = {"link": Link, "port": PortSpec, "compute": ComputeSpec}.get(path[0]) if len(path) > 1 else NetworkSpec
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
        raise ConfigError(f"--topology {path}: {reason}; allowed: switch, shared, or a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
