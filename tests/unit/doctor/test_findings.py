"""How findings are shown: to a reader, and to a program."""

import json

from grsgd.doctor.findings import Finding, by_ranks, in_json, in_text

FOUND = [Finding("MPI", "library", "Open MPI v5"), Finding("room", "/dev/shm", "64 MiB", "make it larger")]


def test_what_hurts_is_marked_and_its_remedy_is_at_the_end():
    lines = in_text("title", FOUND).splitlines()
    assert lines == [
        "title",
        "",
        "MPI",
        "  library   Open MPI v5",
        "",
        "room",
        "! /dev/shm  64 MiB",
        "",
        "1 of 2 findings hurt",
        "! room, /dev/shm: 64 MiB",
        "  remedy: make it larger",
    ]
    assert in_text("title", FOUND[:1]).endswith("nothing found that hurts")


def test_a_program_reads_the_same():
    read = json.loads(in_json("title", FOUND))
    assert read["hurts"] == 1 and [each["verdict"] for each in read["findings"]] == ["ok", "hurts"]
    assert read["findings"][1]["remedy"] == "make it larger"


def test_each_value_is_shown_once_with_its_ranks():
    assert by_ranks(["4.1", "4.1"]) == "4.1"
    assert by_ranks(["4.1", "4.0", "4.1"]) == "4.1 (ranks 0, 2), 4.0 (rank 1)"
