"""``grsgd doctor`` on real ranks, which are healthy, or of which a rank stops."""

import json

from tests.support.launcher import finish, start

STOPPED = """
import os, signal, sys
from grsgd.cli import main
from grsgd.doctor import links
from grsgd.mpi_environment import rank

if rank() == "1":
    links.answer = lambda *arguments: os.kill(os.getpid(), signal.SIGSTOP)
links.PAIR_SECONDS = 1.0
sys.exit(main(["doctor"]))
"""


def test_a_job_is_examined(tmp_path):
    code, output = finish(start("mpich", 2, ["-m", "grsgd", "doctor", "--json", "--output", tmp_path]), 60)
    report = json.loads(output[output.index("{") : output.rindex("}") + 1])
    found = {(each["group"], each["name"]): each for each in report["findings"]}
    assert found["launcher", "ranks"]["value"] == "2 found, 2 asked for"
    assert "Gbit/s" in found["links", "ranks 0 and 1"]["value"]
    assert found["MPI", "thread level"]["value"] == "MULTIPLE"
    assert found["output folder", "folder"]["value"].startswith(str(tmp_path))
    groups = {"launcher", "MPI", "places", "room", "output folder", "versions", "clocks", "links", "GPUs"}
    assert {group for group, _ in found} == groups, "a check is left out"
    hurts = {name for name, each in found.items() if each["verdict"] == "hurts"}
    assert report["hurts"] == len(hurts) and code == bool(hurts), output
    of_this_machine = {("places", "cores"), ("places", "processor quota"), ("room", "/dev/shm")}
    assert hurts <= of_this_machine | {("output folder", "writing")}, output


def test_a_rank_that_stops_is_named():
    code, output = finish(start("openmpi", 2, ["-c", STOPPED]), 60)
    assert code != 0 and "! ranks 0 and 1 " in output and "rank 0 waited 1 s for receive from rank 1" in output, output
