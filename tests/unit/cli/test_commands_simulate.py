"""``grsgd simulate`` with wrong input: one line that names the culprit and what is allowed, exit code 2, no file."""

import re

import pytest

from grsgd import load_run
from grsgd.cli import main

CONFIG = """
[algorithm]
name = "dpsgd"
[model]
name = "mlp"
hidden = [4]
[data]
name = "synthetic"
[train]
steps = 3
"""
BASE = 'bandwidth = "1gbit"\nlatency = "5us"\n'
LINK = "[[link]]\nfrom = 0\nto = 1\n"


@pytest.fixture
def simulate(tmp_path, capsys):
    """Runs the command with a network's file of the given text; returns exit code, stdout and stderr."""
    (tmp_path / "run.toml").write_text(CONFIG)

    def run(*arguments, topology=None):
        if topology is not None:
            (tmp_path / "network.toml").write_text(topology)
            arguments += ("--network", str(tmp_path / "network.toml"))
        code = main(
            ["simulate", str(tmp_path / "run.toml"), "--timing-only", "--out", str(tmp_path / "run.h5"), *arguments]
        )
        return code, *capsys.readouterr()

    return run


def test_right_input(simulate, tmp_path):
    code, out, err = simulate(topology=BASE + LINK + "[compute]\nmedian = 0.01\nslowdown = { 2 = 2.0 }\n")
    assert code == 0 and err == ""
    assert re.fullmatch(rf"{tmp_path}/run\.h5: [\d.]+ simulated s of training, [\d.]+ KiB sent\n", out)
    run = load_run(tmp_path / "run.h5")
    assert run.ranks["compute_seconds"] == pytest.approx([0.03, 0.03, 0.06, 0.03])
    assert run.attributes["compute"] == "constant:0.01, slowdown { 2 = 2 }"


def test_a_run_that_is_saved_elsewhere_is_no_success_and_no_wrong_use(simulate, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("grsgd.job.rescue.was_replaced", lambda path: True)
    monkeypatch.setattr("grsgd.job.rescue.is_of_run", lambda path, attributes: False)
    code, _, said = simulate(topology=BASE)
    assert code == 1 and "another run has written it" in said and "the run was saved as" in said


def test_steps_after_waits(simulate, tmp_path):
    """Of an all-reduce all but the slowest rank wait; it never does for long."""
    slow = "[compute]\nmedian = 0.1\nafter_wait = 0.05\nslowdown = { 2 = 4.0 }\n"
    assert simulate("--set", "algorithm.name=ring_allreduce", topology=BASE + LINK + slow)[0] == 0
    run = load_run(tmp_path / "run.h5")
    steps = run.ranks["steps"][0]
    others = 0.1 + 0.05 * (steps - 1)
    assert run.ranks["compute_seconds"] == pytest.approx([others, others, 0.4 * steps, others], rel=0.02)


FORMS = "constant:SECONDS, lognormal:MEDIAN,SIGMA, flops:PER_SECOND, measured"


@pytest.mark.parametrize(
    ("arguments", "named", "allowed"),
    [
        (["--network", "1foo,5us"], "'1foo'", "bit, kbit, mbit, gbit, tbit"),
        (["--network", "1gbit,5parsec"], "'5parsec'", "ns, us, ms, s"),
        (["--network=-1gbit,5us"], "'-1gbit'", "positive"),
        (["--network", "-1gbit,5us"], "'-1gbit'", "positive"),
        (["--network", "0gbit,5us"], "'0gbit'", "positive"),
        (["--network", "1gbit"], "--network 1gbit", "switch, shared, or a TOML file"),
        (["--network", "shared,1gbit,5us,3"], "'shared,1gbit,5us,3'", "such as 1gbit,50us"),
        (["--network", "1gbit,-5us"], "'-5us'", "0 or more"),
        (["--network", "missing.toml"], "missing.toml: No such file", "switch, shared, or a TOML file"),
        (["--network", "."], "--network .", "switch, shared, or a TOML file"),
        (["--topology", "shared"], "--topology 'shared' is unknown", "allowed: fat-tree:k=8, torus:8x8x8"),
        (["--topology=net.toml"], "'net.toml' is unknown", "other networks with --network"),
        (["--topology", "hosts:1x3"], "hosts:1x3 has places for 3 ranks", "the run has 4 ranks"),
        (["--spares", "1", "--ranks", "5", "--topology", "torus:4"], "places for 4 ranks", "4 ranks and 1 spares"),
        (["--ranks", "0"], "--ranks 0", "1 or more"),
        (["--ranks", "-3"], "--ranks -3", "1 or more"),
        (["--ranks", "1000000"], "--ranks 1000000", "fewer ranks"),
        (["--compute", "fast"], "'fast'", FORMS),
        (["--compute", "constant"], "'constant'", FORMS),
        (["--compute", "constant:a"], "'constant:a'", FORMS),
        (["--compute", "constant:1,2"], "'constant:1,2'", FORMS),
        (["--compute", "lognormal:1"], "'lognormal:1'", FORMS),
        (["--compute", "measured:3"], "'measured:3'", FORMS),
        (["--compute", ""], "''", FORMS),
        (["--compute", "constant:-1"], "'constant:-1'", "0 or more"),
        (["--compute", "constant:inf"], "'constant:inf'", "finite"),
        (["--compute", "constant:nan"], "'constant:nan'", "finite"),
        (["--compute", "flops:0"], "'flops:0'", "above 0"),
        (["--compute", "lognormal:0.1,1000"], "SIGMA = 1000", "allowed: 0 to 20"),
        (["--compute", "constant:0", "--set", "train.seconds=1"], "constant:0.0", "more than 0 seconds per step"),
        (["--compute", "constant:0", "--set", "algorithm.name=grsgd"], "constant:0.0", "more than 0 seconds per step"),
        (["--compute", "lognormal:0,1", "--set", "train.seconds=1"], "train.seconds = 1", "than 0 seconds per step"),
        (["--set", "algorithm.name=sgd"], "algorithm.name", "dpsgd"),
        (["--set", "stragglers.slowdown={9=2.0}"], "stragglers.slowdown: rank 9", "0 to 3"),
        (["--out", "missing/run.h5"], "missing/run.h5", "no directory"),
    ],
)
def test_wrong_argument(arguments, named, allowed, simulate, tmp_path):
    refused(simulate(*arguments), named, allowed, tmp_path, ["run.toml"])


@pytest.mark.parametrize(
    ("topology", "named", "allowed"),
    [
        ("bandwidth = ", "network.toml", "not valid TOML"),
        ("", "bandwidth: missing", "latency: missing"),
        ('bandwidth = 5\nlatency = "5us"\n', "bandwidth: rate 5", "bit, kbit"),
        (BASE + 'bandwith = "1gbit"\n', "bandwith", "did you mean bandwidth?"),
        (BASE + 'medium = "ring"\n', "'ring'", "switch, shared, links, cables, fat-tree:k=8"),
        (BASE + "[[link]]\nfrom = 0\n", "link.0.to", "missing"),
        (BASE + LINK + 'latncy = "1us"\n', "link.0.latncy", "from, to, bandwidth, latency, both_ways"),
        (BASE + LINK + 'latency = "-1us"\n', "link.0.latency: time '-1us'", "0 or more"),
        (BASE + LINK + LINK, "from 0 to 1", "twice"),
        (BASE + "[[link]]\nfrom = -1\nto = 0\n", "link.0.from = -1", "greater than or equal to 0"),
        (BASE + "[[link]]\nfrom = 0\nto = 4\n", "link from 0 to 4", "allowed numbers: 0 to 3"),
        (BASE + 'link = "x"\n', "link", "[[link]]"),
        (BASE + '[[port]]\nrank = 7\nbandwidth = "1gbit"\n', "port of rank 7", "allowed numbers: 0 to 3"),
        (BASE + '[[port]]\nrank = 1\nbandwidth = "1gbit"\n' * 2, "port: the port of rank 1", "twice"),
        (BASE + 'medium = "shared"\n[[port]]\nrank = 1\nbandwidth = "1gbit"\n', "shared medium", "no ports"),
        (BASE + 'medium = "links"\n', "medium = 'links'", "at least one [[link]]"),
        ('medium = "links"\n' + BASE + LINK, "no link from rank 0 to rank 3", "links from 0: 1"),
        (BASE + "[compute]\nmedian = 0\n", "compute.median = 0", "greater than 0"),
        (BASE + "compute = 3\n", "compute = 3: is a section", "its keys: median, sigma, after_wait"),
        (BASE + "[compute]\nmedian = 1\nsigma = 1000\n", "compute.sigma = 1000", "less than or equal to 20"),
        (BASE + "[compute]\nmedian = 1\nsigma = -1\n", "compute.sigma = -1", "greater than or equal to 0"),
        (BASE + "[compute]\nmedian = 1\nsigm = 2\n", "compute.sigm", "median, sigma, after_wait, "),
        (BASE + "[compute]\nmedian = 1\nslowdown = { 9 = 2.0 }\n", "compute.slowdown of rank 9", "numbers: 0 to 3"),
        (BASE + "[compute]\nmedian = 1\nslowdown = { 1 = 0 }\n", "compute.slowdown.1", "greater than 0"),
        (BASE + "[compute]\nmedian = 1\nslowdown = { a = 2 }\n", "compute.slowdown.a", "integer"),
    ],
)
def test_wrong_topology_file(topology, named, allowed, simulate, tmp_path):
    refused(simulate(topology=topology), named, allowed, tmp_path, ["network.toml", "run.toml"])


def test_topology_file_that_is_not_text(simulate, tmp_path):
    (tmp_path / "network.toml").write_bytes(b"\xff\xfe\x00")
    outcome = simulate("--network", str(tmp_path / "network.toml"))
    refused(outcome, "network.toml", "allowed: switch, shared", tmp_path, ["network.toml", "run.toml"])


def refused(outcome, named, allowed, folder, files):
    code, out, err = outcome
    assert code == 2 and out == "", err
    assert err.startswith("grsgd: error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert named in err and allowed in err, err
    assert sorted(path.name for path in folder.iterdir()) == files
