"""Schedules in GOAL: what is written keeps to the grammar, what is read says what it says, and wrong input is named."""

import re

import pytest

from grsgd.errors import ConfigError
from grsgd.simulator.run import simulate
from grsgd.simulator.tracing import goal
from grsgd.simulator.tracing.goal import CALC, RECV, SEND, Operation
from grsgd.simulator.tracing.instrumentation import Instrumentation
from grsgd.testing.simulated import network_of
from tests.support.training import SLOW, config

IDENTIFIER, NUMBER = r"[a-zA-Z][a-zA-Z0-9_]*", r"[0-9]+"
STATEMENT = re.compile(
    rf"""//.*
      | num_ranks[ ]{NUMBER} | rank[ ]{NUMBER}[ ]\{{ | \}}
      | ({IDENTIFIER}:[ ])?calc[ ]{NUMBER}([ ]cpu[ ]{NUMBER})?
      | ({IDENTIFIER}:[ ])?(send[ ]{NUMBER}b[ ]to|recv[ ]{NUMBER}b[ ]from)[ ]{NUMBER}
        [ ]tag[ ]{NUMBER}([ ]cpu[ ]{NUMBER})?([ ]nic[ ]{NUMBER})?
      | {IDENTIFIER}[ ]i?requires[ ]{IDENTIFIER}
      |""",
    re.VERBOSE,
)
"""What LogGOPSim's txt2bin accepts of a line, as far as it is used here: an identifier is letters, digits and
underscores, a calc has no tag, and a comment has a line of its own."""
TWO = """num_ranks 2
rank 0 {
l1: calc 1000 cpu 1
l2: send 8b to 1 tag 3
l2 requires l1
}
rank 1 {
l1: recv 8b from 0 tag 3
l2: calc 500
l2 irequires l1
}
"""


@pytest.mark.parametrize("name", ["ring_allreduce", "grsgd", "gossip", "parameter_server", "ssgd", "lasgd"])
def test_what_is_written_keeps_to_the_grammar(name, tmp_path):
    path = tmp_path / "run.goal"
    simulate(
        config(name),
        4,
        network_of(**SLOW),
        tmp_path / "run.h5",
        "lognormal:0.01,0.5",
        timing_only=True,
        recording=Instrumentation(None, path),
    )
    lines = path.read_text().splitlines()
    assert [line for line in lines if not STATEMENT.fullmatch(line)] == []
    ranks = [int(line.split()[1]) for line in lines if line.startswith("rank ")]
    assert ranks == [0, 1, 2, 3]  # txt2bin makes its file with rank 0 and closes it with the last
    defined: set[str] = set()
    for line in lines:
        if line.startswith("rank "):
            defined = set()
        if ":" in line and not line.startswith("//"):
            defined.add(line.partition(":")[0])
        if "requires" in line and not line.startswith("//"):
            later, _, earlier = line.split()
            assert {later, earlier} <= defined and later != earlier
    operations = [operation for rank in goal.read(path) for operation in rank]
    assert max(operation.tag for operation in operations) < 2**31
    assert max(operation.cpu for operation in operations) < 256
    assert all((operation.nic == 1) == (operation.tag >= 2**30) for operation in operations)
    charged = {operation.cpu for operation in operations if operation.nic}
    assert len(charged) <= 1 and (charged or name != "grsgd")
    assert not charged & {operation.cpu for operation in operations if not operation.nic}


@pytest.mark.parametrize("name", ["ring_allreduce", "grsgd", "gossip", "parameter_server", "easgd"])
def test_every_message_has_its_receive(name, tmp_path):
    """LogGOPSim complains of queues that are not empty in the end."""
    path = tmp_path / "run.goal"
    traced = Instrumentation(None, path)
    simulate(config(name), 4, network_of(**SLOW), tmp_path / "run.h5", "constant:0.01", recording=traced)
    ranks = goal.read(path)
    sends = [(rank, op.peer, op.tag, op.size) for rank, ops in enumerate(ranks) for op in ops if op.kind == SEND]
    receives = [(op.peer, rank, op.tag, op.size) for rank, ops in enumerate(ranks) for op in ops if op.kind == RECV]
    assert sends and sorted(sends) == sorted(receives)


def test_what_is_read(tmp_path):
    (tmp_path / "two.goal").write_text(TWO)
    assert goal.read(tmp_path / "two.goal") == [
        [Operation(CALC, 1000, cpu=1, label="l1"), Operation(SEND, 8, 1, 3, requires=[0], label="l2")],
        [Operation(RECV, 8, 0, 3, label="l1"), Operation(CALC, 500, irequires=[0], label="l2")],
    ]


def test_what_is_written_is_read_again(tmp_path):
    (tmp_path / "two.goal").write_text(TWO)
    ranks = goal.read(tmp_path / "two.goal")
    goal.write(tmp_path / "again.goal", ranks, ["a comment", "another\nof two lines"])
    assert goal.read(tmp_path / "again.goal") == ranks


@pytest.mark.parametrize(
    "text",
    [
        "num_ranks 1\nrank 0 {\n}",
        "num_ranks 1 rank 0 { }",
        "// first\n/* second\nthird */num_ranks 1\n\nrank 0 {\n// inside\n}\n",
        "num_ranks 1\r\nrank 0 {\r\n}\r\n",
    ],
)
def test_other_ways_to_write_nothing(text, tmp_path):
    (tmp_path / "x.goal").write_text(text)
    assert goal.read(tmp_path / "x.goal") == [[]]


def test_what_may_be_left_out(tmp_path):
    text = "num_ranks 2\nrank 1 {\nrecv 8b from 0 cpu 2 nic 1\ncalc 7\n  send 9b to 0 tag 4 nic 0\n}\n"
    (tmp_path / "x.goal").write_text(text)
    assert goal.read(tmp_path / "x.goal") == [
        [],
        [Operation(RECV, 8, 0, cpu=2, nic=1), Operation(CALC, 7), Operation(SEND, 9, 0, 4)],
    ]


@pytest.mark.parametrize(
    ("line", "wrong", "named"),
    [
        (4, "l2: send 8b to 2 tag 3", "rank 2: allowed: 0 to 1"),
        (4, "l2: send 8 to 1 tag 3", "'l2: send 8 to 1 tag 3': allowed: num_ranks N, rank N {"),
        (4, "l2: recv 8b from -1 tag 3", "-1 stands for any rank or any tag"),
        (4, "l2: recv 8b from 1 tag -1", "-1 stands for any rank or any tag"),
        (4, "l1: calc 8", "label l1: appears twice"),
        (4, "l2: calc -8", "allowed"),
        (4, "l2: calc 8 tag 1", "allowed"),
        (4, "l2: send 8b from 1", "allowed"),
        (5, "l2 requires l7", "label l7: is not defined above"),
        (2, "rank 2 {", "rank 2: allowed are ranks 0 to 1, each once"),
        (7, "rank 0 {", "rank 0: allowed are ranks 0 to 1, each once"),
        (6, "rank 1 {", "rank 1: must come after num_ranks, and after the } that ends another rank"),
        (1, "num_ranks 0", "num_ranks 0: must be from 1 to"),
        (1, "calc 5", "outside of rank N { ... }"),
        (6, "num_ranks 2", "num_ranks 2: must be from 1 to 1000000, and appear once"),
    ],
)
def test_wrong_lines_are_named(line, wrong, named, tmp_path):
    lines = TWO.splitlines()
    lines[line - 1] = wrong
    (tmp_path / "x.goal").write_text("\n".join(lines))
    with pytest.raises(ConfigError) as error:
        goal.read(tmp_path / "x.goal")
    assert f"x.goal, line {line}: " in str(error.value) and named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "num_ranks is missing"),
        (b"num_ranks 1\nrank 0 {\n", "rank 0 has no closing }"),
        (b"\xff\xfe", "is not a text file"),
        (None, "No such file"),
    ],
)
def test_wrong_files_are_named(content, named, tmp_path):
    if content is not None:
        (tmp_path / "x.goal").write_bytes(content)
    with pytest.raises(ConfigError, match=named):
        goal.read(tmp_path / "x.goal")
