"""Scripts of users with `distribute` and `recording`, as jobs that end before their time."""

import re
import signal
import time

import pytest

import grsgd
from tests.support import launcher

SCRIPT = """
import pathlib, sys
import torch, grsgd
how, out = sys.argv[1:]
model = torch.nn.Linear(4, 2)
options = {"polisy": "random"} if how == "option" else {}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = grsgd.distribute(model, optimizer, "local_sgd", timeout=30, H=1, **options)
with grsgd.recording(out, optimizer) as run:
    for step in range(10**7):
        model(torch.ones(5, 4)).square().sum().backward()
        optimizer.step()
        run.log(loss=1)
        if step == 20:
            pathlib.Path(out).with_suffix(f".{grsgd.rank()}").touch()
            if how == "error" and grsgd.rank() == 1:
                raise KeyError("of mine")
            if how == "exit":
                sys.exit()
"""


def start(how, out):
    script = out.with_suffix(".py")
    script.write_text(SCRIPT)
    return launcher.start("openmpi", 2, [script, how, out])


def test_a_wrong_option_is_told_once_in_one_line(tmp_path):
    code, output = launcher.finish(start("option", tmp_path / "run.h5"), 60)
    line = r"grsgd: local_sgd: polisy: unknown key; allowed: H, post_local, beta, alpha, variant"
    assert code == 2 and len(re.findall(line, output)) == 1 and "Traceback" not in output, output


def test_an_error_on_one_rank_leaves_the_run_of_all(tmp_path):
    out = tmp_path / "run.h5"
    code, output = launcher.finish(start("error", out), 60)
    assert code == 1 and output.count("Traceback") == output.count("KeyError: 'of mine'\n") == 1, output
    run = grsgd.load_run(out)
    assert (run.attributes["ended"], run.attributes["reason"]) == ("failed", "KeyError: 'of mine' on rank 1")
    assert (run.ranks["steps"] >= 21).all() and (run.traffic["sent"].sum(1) > 0).all()
    assert set(run.curve["train_loss"][:-1]) == {1}


@pytest.mark.exhaustive
def test_why_a_script_has_left_the_loop_is_told_once(tmp_path):
    out = tmp_path / "run.h5"
    code, output = launcher.finish(start("exit", out), 60)
    assert code == 1 and "ended without optimizer.finish()" not in output, output
    assert output.count(f"{out}: stopped early: SystemExit on rank ") == 1, output


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_outlives_a_signal(tmp_path, number):
    """In one of five attempts at least: Open MPI's launcher leaves its ranks a fifth of a second."""
    for attempt in range(5):
        out = tmp_path / f"run-{attempt}.h5"
        job = start("signal", out)
        deadline = time.monotonic() + 60
        while not all(out.with_suffix(f".{rank}").exists() for rank in (0, 1)) and time.monotonic() < deadline:
            time.sleep(0.05)
        job.send_signal(number)
        code, output = launcher.finish(job, 60)
        assert code != 0
        if out.exists():
            break
    run = grsgd.load_run(out)
    assert run.attributes["ended"] == "interrupted" and run.attributes["reason"] in output, output
    assert (run.ranks["steps"] >= 21).all()
