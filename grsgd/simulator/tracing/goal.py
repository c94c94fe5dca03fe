"""Reading and writing of files in GOAL (Group Operation Assembly Language), a text format for recordings of parallel
programs. A GOAL file lists the operations (sends, receives and computations) of each rank, and the dependencies between
operations.

T. Hoefler, C. Siebert, A. Lumsdaine: Group Operation Assembly Language, ICPP 2009. LogGOPSim's ``txt2bin``
reads this grammar::

    num_ranks 2
    rank 0 {
    l1: calc 1000 cpu 0
    l2: send 8b to 1 tag 3
    l2 requires l1
    }
    rank 1 {
    l1: recv 8b from 0 tag 3
    l2: calc 500
    l2 irequires l1
    }

The number after ``calc`` is the time of a computation in nanoseconds. On each rank, computations with the same ``cpu``
number run one after the other. ``b requires a`` means that operation b begins when operation a has ended. ``b irequires
a`` means that operation b begins when operation a has begun. Operations of a rank that do not depend on each other run
at the same time.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grsgd.errors import ConfigError
from grsgd.files import atomic_write
from grsgd.memory import check_fits
from grsgd.runs.targets import naming, target_of
from grsgd.text import printable

CALC, SEND, RECV = KINDS = ("calc", "send", "recv")
MAX_RANKS = 1_000_000
"""Greatest number of ranks (``num_ranks``) that a GOAL file may have."""
MAX_DIGITS = 18
"""Greatest number of decimal digits of any number in a GOAL file, such as a tag or a number of bytes."""
LINE = re.compile(
    r"""\s*(?:
      num_ranks\s*(?P<ranks>\d+)
    | rank\s*(?P<rank>\d+)\s*\{
    | (?P<close>\})
    | (?:(?P<label>[A-Za-z]\w*)\s*:\s*)?(?:
        calc\s*(?P<ns>\d+)(?:\s*cpu\s*(?P<calc_cpu>\d+))?
      | (?:send\s*(?P<sent>\d+)\s*b\s*to\s*(?P<to>\d+) | recv\s*(?P<received>\d+)\s*b\s*from\s*(?P<from>-1|\d+))
        (?:\s*tag\s*(?P<tag>-1|\d+))?(?:\s*cpu\s*(?P<cpu>\d+))?(?:\s*nic\s*(?P<nic>\d+))?
      )
    | (?P<later>[A-Za-z]\w*)\s+(?P<verb>i?requires)\s+(?P<earlier>[A-Za-z]\w*)
    )[ \t\r]*""",
    re.VERBOSE | re.ASCII,
)
"""Regular expression for one statement of a GOAL file. After a `num_ranks` statement, after a `rank` statement, or
after a closing brace, another statement can follow on the same line."""
ALLOWED = (
    "num_ranks N, rank N {, }, [label:] calc N [cpu N], [label:] send Nb to RANK [tag N], "
    "[label:] recv Nb from RANK [tag N], label requires label, label irequires label"
)


@dataclass(slots=True)
class Operation:
    """One operation of a rank in a GOAL file: a computation (calc), a send or a receive.

    size: nanoseconds of a calc, or bytes of a message. peer: the other rank of a message; None for a calc. nic: number
    of the network card of a message; a calc has no nic. requires: indices, in the rank's list, of earlier operations
    that must have ended before this operation begins. irequires: indices of earlier operations that must have begun
    before this operation begins.
    """

    kind: str
    size: int
    peer: int | None = None
    tag: int = 0
    cpu: int = 0
    nic: int = 0
    requires: list[int] = field(default_factory=list)
    irequires: list[int] = field(default_factory=list)
    label: str | None = None

    def __str__(self):
        where = (f" cpu {self.cpu}" if self.cpu else "") + (f" nic {self.nic}" if self.nic else "")
        if self.kind == CALC:
            return f"calc {self.size}{where}"
        way = "to" if self.kind == SEND else "from"
        return f"{self.kind} {self.size}b {way} {self.peer} tag {self.tag}{where}"


def write(path: str | os.PathLike, ranks: list[list[Operation]], comments: Iterable[str] = ()):
    """Write the operations of all ranks to the GOAL file ``path``. If writing fails, no incomplete file is left. Raises
    RunFileError if the file cannot be written."""
    with naming(path), atomic_write(target_of(path)) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.writelines(f"// {printable(line)}\n" for line in comments)
        file.write(f"num_ranks {len(ranks)}\n")
        for rank, operations in enumerate(ranks):
            file.write(f"\nrank {rank} {{\n")
            labels = [operation.label or f"l{place + 1}" for place, operation in enumerate(operations)]
            for label, operation in zip(labels, operations, strict=True):
                file.write(f"{label}: {operation}\n")
                file.writelines(f"{label} requires {labels[other]}\n" for other in operation.requires)
                file.writelines(f"{label} irequires {labels[other]}\n" for other in operation.irequires)
            file.write("}\n")


def read(path: str | os.PathLike) -> list[list[Operation]]:
    """Return the operations of all ranks in the GOAL file ``path``. Raises ConfigError, whose message names
    the line, if the file is not a valid GOAL file."""
    try:
        check_fits(path)
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)}: {getattr(error, 'strerror', None) or 'is not a text file'}") from None
    return GoalReader(os.fspath(path)).read(text)


def without_comments(text: str) -> str:
    """Return ``text`` without its comments between /* and */. Line breaks inside comments are kept, so that the numbers
    of lines stay the same."""
    parts, at = [], 0
    while (begin := text.find("/*", at)) >= 0 and (end := text.find("*/", begin + 2)) >= 0:
        parts += [text[at:begin], "\n" * text.count("\n", begin, end)]
        at = end + 2
    return "".join(parts) + text[at:]


class GoalReader:
    """Reader of one GOAL file, which finds errors in the file. Error messages of the reader begin with ``name``, the
    name of the file."""

    def __init__(self, name: str):
        self.name, self.line = name, 0
        self.ranks: list[list[Operation]] | None = None
        self.rank: int | None = None
        """Rank whose operations the reader is reading; None outside of the braces of a rank."""
        self.filled: set[int] = set()
        self.labels: dict[str, int] = {}

    def read(self, text: str) -> list[list[Operation]]:
        for self.line, whole in enumerate(without_comments(text).split("\n"), 1):
            whole = whole.partition("//")[0].rstrip()
            at = 0
            while at < len(whole):
                found = LINE.match(whole, at)
                may_go_on = found is not None and (found["ranks"] or found["rank"] or found["close"])
                if found is None or not (found.end() == len(whole) or may_go_on):
                    raise self.complaint(f"{printable(whole[at : at + 200].strip())[:60]!r}: allowed: {ALLOWED}")
                self.take(found)
                at = found.end()
        if self.ranks is None:
            raise ConfigError(f"{self.name}: num_ranks is missing")
        if self.rank is not None:
            raise ConfigError(f"{self.name}: rank {self.rank} has no closing }}")
        return self.ranks

    def take(self, found: re.Match):
        """Process one statement of the GOAL file; ``found`` is a match of the pattern `LINE`."""
        if found["ranks"]:
            self.take_ranks(self.number(found["ranks"]))
        elif found["rank"]:
            self.open(self.number(found["rank"]))
        elif self.rank is None:
            raise self.complaint("a statement outside of rank N { ... }")
        elif found["close"]:
            self.rank = None
        elif found["verb"]:
            places = [self.place(found[name]) for name in ("later", "earlier")]
            getattr(self.ranks[self.rank][places[0]], found["verb"]).append(places[1])
        else:
            self.take_operation(found)

    def number(self, digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise self.complaint(f"{digits[:60]}: a number has at most {MAX_DIGITS} digits")
        return int(digits)

    def take_ranks(self, ranks: int):
        if self.ranks is not None or not 1 <= ranks <= MAX_RANKS:
            raise self.complaint(f"num_ranks {ranks}: must be from 1 to {MAX_RANKS}, and appear once")
        self.ranks = [[] for _ in range(ranks)]

    def open(self, rank: int):
        if self.ranks is None or self.rank is not None:
            raise self.complaint(f"rank {rank}: must come after num_ranks, and after the }} that ends another rank")
        if rank >= len(self.ranks) or rank in self.filled:
            raise self.complaint(f"rank {rank}: allowed are ranks 0 to {len(self.ranks) - 1}, each once")
        self.rank, self.labels = rank, {}
        self.filled.add(rank)

    def take_operation(self, found: re.Match):
        if found["ns"]:
            operation = Operation(CALC, self.number(found["ns"]), cpu=self.number(found["calc_cpu"] or "0"))
        else:
            kind, peer = (SEND, found["to"]) if found["to"] else (RECV, found["from"])
            if "-1" in (peer, found["tag"]):
                raise self.complaint("-1 stands for any rank or any tag: name the rank or the tag of the message")
            if self.number(peer) >= len(self.ranks):
                raise self.complaint(f"rank {peer}: allowed: 0 to {len(self.ranks) - 1}")
            size = self.number(found["sent"] or found["received"])
            tag, cpu, nic = (self.number(found[name] or "0") for name in ("tag", "cpu", "nic"))
            operation = Operation(kind, size, int(peer), tag, cpu, nic)
        operation.label = found["label"]
        if operation.label in self.labels:
            raise self.complaint(f"label {operation.label}: appears twice")
        operations = self.ranks[self.rank]
        if operation.label:
            self.labels[operation.label] = len(operations)
        operations.append(operation)

    def place(self, label: str) -> int:
        if label not in self.labels:
            raise self.complaint(f"label {label}: is not defined above")
        return self.labels[label]

    def complaint(self, what: str) -> ConfigError:
        return ConfigError(f"{self.name}, line {self.line}: {what}")
