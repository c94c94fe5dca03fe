"""Description of a simulated network, which a short text such as ``1gbit,50us`` or a network file (TOML) gives."""

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from grsgd.comm.engine import SLEEP_SECONDS, SLEEP_SHARE, SPIN_SECONDS
from grsgd.config.complaints import describe_one, unknown_key
from grsgd.config.sections import integer_keys
from grsgd.errors import ConfigError
from grsgd.memory import check_fits
from grsgd.simulator.cabling import ready_made
from grsgd.simulator.cabling.cable import Cabling, Place
from grsgd.simulator.cabling.hosts import MEMORY_BANDWIDTH, MEMORY_LATENCY, HostCards
from grsgd.simulator.cabling.own import OwnCabling
from grsgd.units import as_duration, as_rate, duration, rate

EAGER_BYTES = 65536
"""Default largest size in bytes of a message that leaves before its receive is posted: Open MPI's value over TCP."""
MAX_SIGMA = 20.0
"""Largest allowed sigma, the standard deviation of the logarithm of a computation's seconds. With this sigma, one
computation in six takes more than e^20 (half a billion) times the median. Far larger sigmas would overflow a float."""
AFTER_WAIT_SECONDS = 20e-3
"""Seconds of waiting after which the computation of a step takes `ComputeSpec.after_wait` seconds."""


MEDIA = ("switch", "shared", "links", "cables")
"""Values of the key ``medium`` of a network file, apart from ready-made networks of cables such as ``torus:8x8x8``."""


ALLOWED = f"switch, shared, or a TOML file; with cables: {ready_made.FORMS}"
"""List of the allowed values of ``--network``, for error messages."""
TAKES_PROCESSOR = "messages take processor time"
"""Text that says, in the run file's description of a network, that the network file has a section ``[processor]``."""


class MissingLink(ConfigError):
    """Error for a message between two ranks that the network does not connect."""


class NetworkSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


Rate = Annotated[float, BeforeValidator(rate)]
Duration = Annotated[float, BeforeValidator(duration)]
Rank = Annotated[int, Field(ge=0, strict=True)]


def place(value) -> Place:
    """Return ``value`` if it is the number of a rank or the name of a switch, else raise ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value and not re.fullmatch(r"rank [0-9]+", value):
        return value
    raise ValueError(f"{value!r} is neither the number of a rank nor the name of a switch")


def places(value) -> tuple[Place, ...]:
    """Return a tuple of places (ranks or switches) from one place or a list; raise ValueError for anything else."""
    return tuple(map(place, value if isinstance(value, list | tuple) else [value]))


def known_medium(text: str) -> str:
    """Return ``text`` if it is one of `MEDIA` or a ready-made network of cables, else raise ValueError."""
    if ready_made.is_ready_made(text):
        ready_made.read(text)
    elif text not in MEDIA:
        raise ValueError(f"{text!r} is unknown; allowed: {', '.join(MEDIA)}, {ready_made.FORMS}")
    return text


class LinkSpec(NetworkSection):
    """Link from one rank to another, or both ways (``both_ways``): a section ``[[link]]`` of a network file."""

    source: Rank = Field(alias="from")
    dest: Rank = Field(alias="to")
    bandwidth: Rate | None = None
    latency: Duration | None = None
    both_ways: bool = Field(False, strict=True)


class PortSpec(NetworkSection):
    """Bandwidth of the port of one rank: a section ``[[port]]`` of a network file."""

    rank: Rank
    bandwidth: Rate


class CableSpec(NetworkSection):
    """Cables from one place to one or several places, and back unless ``one_way``: a section ``[[cable]]``.

    A place is the number of a rank, or the name of a switch.
    """

    source: Annotated[Any, BeforeValidator(place)] = Field(alias="from")
    dest: Annotated[tuple[Any, ...], BeforeValidator(places)] = Field(alias="to")
    bandwidth: Rate | None = None
    latency: Duration | None = None
    one_way: bool = Field(False, strict=True)


class MemorySpec(NetworkSection):
    """Memory of each host, which carries messages between ranks on this host: the section ``[memory]``."""

    bandwidth: Rate = MEMORY_BANDWIDTH
    latency: Duration = MEMORY_LATENCY


class ComputeSpec(NetworkSection):
    """Seconds of a step's computation: median, and standard deviation (sigma) of the logarithm of the seconds.

    after_wait, after_wait_sigma: median and sigma for steps after a wait of `AFTER_WAIT_SECONDS` or more. If after_wait
    is None, waits do not change the seconds. work: seconds per step of the algorithm's own code, without messages.
    slowdown: factor by which a rank's computation takes longer; 1 for ranks that are not named. what: text about the
    measurement, for readers of the file.
    """

    median: float = Field(gt=0, allow_inf_nan=False)
    sigma: float = Field(0.0, ge=0, le=MAX_SIGMA, allow_inf_nan=False)
    after_wait: float | None = Field(None, gt=0, allow_inf_nan=False)
    after_wait_sigma: float = Field(0.0, ge=0, le=MAX_SIGMA, allow_inf_nan=False)
    work: float = Field(0.0, ge=0, allow_inf_nan=False)
    slowdown: Annotated[
        dict[Rank, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(integer_keys)
    ] = {}
    what: str = ""


class ProcessorSpec(NetworkSection):
    """Processor time that messages take, as ``grsgd calibrate`` measures it; see `grsgd.simulator.processor`.

    send, receive: seconds of processor time per message, at a computing sender and at a computing receiver.
    send_byte, receive_byte: seconds per byte. A receiver's seconds include adding the message to a sum, or merging it.
    polling: fraction by which a computation takes longer while a background schedule waits.
    reaction: seconds until a computing rank notices a message; with ``thread``, measured for messages in succession.
    thread: whether a thread moves messages. With a thread, a rank itself looks for messages only while it waits;
        without a thread, it looks after each gradient, too.
    wake: seconds until a rank that has waited for long, and sleeps between looks, notices a message.
    spin, full_sleep: seconds of waiting after which a rank begins to sleep between two looks for messages, and after
        which its sleeps have their full length. Both values are smaller if ranks have less than a core.
    share, period: fraction of a core that a quota allows a rank, and seconds of a quota period, at whose end unused
        quota expires. A period of 0 means that ranks have no quota.
    exchange, look: seconds of quota that a waiting rank uses for one sent and one received message (without their
        bytes), and for one look for messages. Ranks without a quota ignore ``exchange`` and ``look``.
    what: text about the measurement, for readers of the file.
    """

    send: Duration = 0.0
    receive: Duration = 0.0
    send_byte: Duration = 0.0
    receive_byte: Duration = 0.0
    polling: float = Field(0.0, ge=0, allow_inf_nan=False)
    reaction: Duration = 0.0
    thread: bool = Field(False, strict=True)
    wake: Duration = 0.0
    spin: Duration = SPIN_SECONDS
    full_sleep: Duration = SLEEP_SECONDS / SLEEP_SHARE
    share: float = Field(1.0, gt=0, le=1)
    period: Duration = 0.0
    exchange: Duration = 0.0
    look: Duration = 0.0
    what: str = ""


MIN_FAIRNESS = 0.1
"""Smallest allowed value of the key ``fairness`` of a network file."""


class NetworkSpec(NetworkSection):
    """A network between simulated ranks, as a network file describes it.

    medium: ``switch``, each rank has a full-duplex port; ``shared``, all messages share one medium; ``links``, a
        switch on which a rank can send to another rank only over a ``[[link]]``; ``cables``, ranks and switches that
        each ``[[cable]]`` joins; or a ready-made network of cables, such as ``torus:8x8x8``.
    multicast: whether one outgoing copy reaches all receivers. A shared medium always has multicast.
    queue_bytes: largest number of a message's bytes in the sender's queue before the bytes of the next message.
    fairness: rate of a message as a fraction of the rate of an earlier message on the same port; 1 means equal rates.
    """

    medium: Annotated[str, AfterValidator(known_medium)] = "switch"
    bandwidth: Rate
    latency: Duration
    multicast: bool = Field(False, strict=True)
    eager_bytes: int = Field(EAGER_BYTES, ge=0, strict=True)
    fairness: float = Field(1.0, ge=MIN_FAIRNESS, le=1)
    queue_bytes: int = Field(0, ge=0, strict=True)
    link: tuple[LinkSpec, ...] = ()
    port: tuple[PortSpec, ...] = ()
    cable: tuple[CableSpec, ...] = ()
    memory: MemorySpec | None = None
    compute: ComputeSpec | None = None
    processor: ProcessorSpec | None = None
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def former_names(cls, content):
        """Translate keys of older network files: ``seniority`` into ``fairness``, and a ``fairness`` with a limit
        ``fairness_bytes`` into ``queue_bytes``, the length of the sender's queue."""
        if not isinstance(content, dict):
            return content
        if "seniority" in content and "fairness" not in content:
            content = {("fairness" if key == "seniority" else key): value for key, value in content.items()}
        nbytes, fairness = content.get("fairness_bytes"), content.get("fairness", 1.0)
        if type(nbytes) is int and nbytes >= 0 and type(fairness) in (int, float) and MIN_FAIRNESS <= fairness <= 1:
            content = {key: value for key, value in content.items() if key != "fairness_bytes"}
            if nbytes and "queue_bytes" not in content:
                content |= {"fairness": 1.0, "queue_bytes": round((1 - fairness) * nbytes / 2)}
        return content

    @model_validator(mode="after")
    def fits(self):
        if self.medium == "shared" and self.port:
            raise ValueError("a shared medium has no ports")
        if self.medium == "links" and not self.link:
            raise ValueError("medium = 'links' needs at least one [[link]]")
        if self.has_cables and (self.link or self.port):
            raise ValueError(f"medium = {self.medium!r} has cables; it takes no [[link]] and no [[port]]")
        if (self.medium == "cables") != bool(self.cable):
            raise ValueError("medium = 'cables' needs at least one [[cable]], and no other medium takes them")
        if self.memory is not None and self.hosts is None:
            raise ValueError(f"memory: medium = {self.medium!r} has no hosts; only media such as {HostCards.form} do")
        ports = [port.rank for port in self.port]
        for rank in ports:
            if ports.count(rank) > 1:
                raise ValueError(f"port: the port of rank {rank} is given twice")
        return self

    def model_post_init(self, _):
        links = {}
        for link in self.link:
            ends = link.source, link.dest
            for source, dest in (ends, ends[::-1]) if link.both_ways else (ends,):
                if (source, dest) in links:
                    raise ValueError(f"link: from {source} to {dest} is given twice")
                links[source, dest] = link
        self.__dict__["_cabling"] = self._make_cabling()
        self.__dict__["_links"] = links  # set through __dict__, because the model is frozen
        self.__dict__["_ports"] = {port.rank: port.bandwidth for port in self.port}

    @property
    def has_cables(self) -> bool:
        """Return True if the medium is a network of cables, in which several messages may use the same cable."""
        return self.medium not in ("switch", "shared", "links")

    @property
    def hosts(self) -> HostCards | None:
        """Return the network of hosts whose ranks share a network card; None if the medium has no hosts."""
        return self._cabling if isinstance(self._cabling, HostCards) else None

    @property
    def cabling(self) -> Cabling | None:
        """Return the network of cables; None for the media ``switch``, ``shared`` and ``links``."""
        return self._cabling

    def _make_cabling(self) -> Cabling | None:
        rates = {"bandwidth": self.bandwidth, "latency": self.latency}
        if self.medium == "cables":
            return OwnCabling(self._directed_cables(), self.name)
        if not self.has_cables:
            return None
        kind, numbers = ready_made.read(self.medium)
        if kind is HostCards and self.memory is not None:
            rates["memory"] = self.memory.bandwidth, self.memory.latency
        return kind(*numbers, **rates)

    def _directed_cables(self) -> Iterator[tuple[Place, Place, float, float]]:
        for cable in self.cable:
            bandwidth = self.bandwidth if cable.bandwidth is None else cable.bandwidth
            latency = self.latency if cable.latency is None else cable.latency
            for dest in cable.dest:
                yield cable.source, dest, bandwidth, latency
                if not cable.one_way:
                    yield dest, cable.source, bandwidth, latency

    def port_bandwidth(self, rank: int) -> float:
        """Return the bandwidth in bytes/s of the port of rank ``rank``, in each direction."""
        return self._ports.get(rank, self.bandwidth) if self.medium != "shared" else math.inf

    def link_bandwidth(self, source: int, dest: int) -> float:
        """Return the link's own bandwidth in bytes/s; infinity if only ports limit the rate. Raises MissingLink."""
        link = self._link(source, dest)
        return math.inf if link is None or link.bandwidth is None else link.bandwidth

    def link_latency(self, source: int, dest: int) -> float:
        """Return the seconds from the departure of a message's last byte to its arrival. Raises MissingLink."""
        link = self._link(source, dest)
        return self.latency if link is None or link.latency is None else link.latency

    def _link(self, source: int, dest: int) -> LinkSpec | None:
        link = self._links.get((source, dest))
        if link is None and self.medium == "links" and source != dest:
            there = ", ".join(str(d) for s, d in sorted(self._links) if s == source) or "none"
            raise MissingLink(f"{self.name}: no link from rank {source} to rank {dest}; links from {source}: {there}")
        return link

    def check_ranks(self, ranks: int, spares: int = 0):
        """Raise ConfigError if the network has fewer ranks than the run, or names a rank that the run does not have."""
        if self.has_cables and ranks + spares > self.cabling.places:
            there, what = self.cabling.places, f"{ranks} ranks" + (f" and {spares} spares" if spares else "")
            raise ConfigError(f"{self.name}: {self.medium} has places for {there} ranks, and the run has {what}")
        named = [(f"link from {link.source} to {link.dest}", max(link.source, link.dest)) for link in self.link]
        named += [(f"port of rank {port.rank}", port.rank) for port in self.port]
        slowdown = self.compute.slowdown if self.compute else {}
        named += [(f"compute.slowdown of rank {rank}", rank) for rank in slowdown]
        for what, rank in named:
            if rank >= ranks:
                raise ConfigError(f"{self.name}: {what}: the run has {ranks} ranks; allowed numbers: 0 to {ranks - 1}")

    def summary(self) -> str:
        """Return a description of the network in one line, for the run file."""
        parts = [self.medium, as_rate(self.bandwidth), as_duration(self.latency)]
        parts += ["multicast"] if self.multicast else []
        parts += [f"fairness {self.fairness:g}"] if self.fairness != 1 else []
        parts += [f"{self.queue_bytes} bytes in queues"] if self.queue_bytes else []
        parts += [f"{len(self.link)} links of their own"] if self.link else []
        parts += [f"{len(self.port)} ports of their own"] if self.port else []
        parts += [f"{sum(1 for _ in self._directed_cables())} directed cables"] if self.cable else []
        if self.hosts is not None:
            bandwidth, latency = self.hosts.memory
            parts.append(f"memory {as_rate(bandwidth)} {as_duration(latency)}")
        parts += [TAKES_PROCESSOR] if self.processor else []
        return ", ".join(parts)


def network(text: str = "switch", topology: str | None = None) -> NetworkSpec:
    """Return the network for the option ``--network [MEDIUM,][RATE,LATENCY]``; raise ConfigError for an invalid text.

    ``MEDIUM`` is ``switch``, ``shared``, a ready-made network of cables such as ``torus:8x8x8``, or a TOML file.
    ``RATE,LATENCY`` replace the bandwidth and the latency in the file. ``topology``: the text of ``--topology``, a
    ready-made network of cables that replaces the medium.
    """
    cables = re.match(rf"(?:{'|'.join(ready_made.KINDS)}):[^,]*(?:,[a-z]=[^,]*)*", text)
    begin = cables[0] if cables else ""
    parts = text[len(begin) :].split(",")
    medium, *rates = ["switch", *parts] if len(parts) == 2 and not cables else [begin + parts[0], *parts[1:]]
    if len(rates) not in (0, 2) or not all(rates):
        raise ConfigError(f"--network {text!r}: give a rate and a latency, such as 1gbit,50us or shared,1gbit,50us")
    given = dict(zip(("bandwidth", "latency"), rates, strict=False))
    if topology is not None:
        check_topology(topology, medium)
    if cables or medium in ("switch", "shared"):
        where, content = "--network", {"medium": medium, "bandwidth": "1gbit", "latency": "50us"} | given
    else:
        where, content = medium, read(medium) | given
    if topology is not None:
        where, content["medium"] = "--topology" if where == "--network" else where, topology
    try:
        return NetworkSpec(**{"name": where} | content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(complaint(one) for one in error.errors())}") from None


def check_topology(text: str, medium: str):
    """Raise ConfigError if ``--topology`` is no ready-made network of cables, or ``--network`` names a medium, too."""
    try:
        ready_made.read(text)
    except ValueError as error:
        hint = "; set the algorithm's graph with --set algorithm.topology=NAME, and other networks with --network"
        raise ConfigError(f"--topology {error}{'' if ready_made.is_ready_made(text) else hint}") from None
    if medium == "shared" or ready_made.is_ready_made(medium):
        raise ConfigError(f"--topology {text} and --network {medium}: only one of them may name the medium")


def bookkeeping_network(spec: NetworkSpec, **more) -> NetworkSpec:
    """Return a network for messages outside the counted traffic: the latency of ``spec``, and no limit of bandwidth."""
    return NetworkSpec(bandwidth="inf bit", latency=f"{spec.latency!r} s", **more)


def complaint(error: dict) -> str:
    """Return a sentence for the user about ``error``, one validation error of a network file."""
    path = [str(part) for part in error["loc"]]
    parts = {"link": LinkSpec, "port": PortSpec, "cable": CableSpec, "memory": MemorySpec}
    parts |= {"compute": ComputeSpec, "processor": ProcessorSpec}
    section = parts.get(path[0]) if len(path) > 1 else NetworkSpec
    if error["type"] == "extra_forbidden" and section is not None:
        allowed = [field.alias or name for name, field in section.model_fields.items() if name != "name"]
        return unknown_key(".".join(path), path[-1], allowed)
    if error["type"] == "tuple_type":
        return f"{path[0]}: write a section [[{path[0]}]] for each {path[0]}"
    if error["type"] == "model_type" and path[0] in parts:
        return f"{path[0]} = {error['input']!r}: is a section; its keys: {', '.join(parts[path[0]].model_fields)}"
    return describe_one(error, NetworkSpec, "").removeprefix(": ")


def read(path: str) -> dict:
    try:
        check_fits(path)
        return tomllib.loads(Path(path).read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--network {path}: {reason}; allowed: {ALLOWED}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
