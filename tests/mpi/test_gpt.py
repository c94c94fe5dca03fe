"""The nanoGPT-like script of the demonstrations, on real ranks: it equals DDP, and goes on with other ranks."""

import os
from shutil import which

import pytest
import torch

from tests.support import launcher

SCRIPT = launcher.ROOT / "experiments" / "demo" / "gpt.py"
SIZES = "--steps 6 --every 3 --warm-up 2 --characters 2000 --block 8 --layers 1 --heads 2 --width 8 --batch 8".split()
WITH_DDP = {
    "import grsgd  # <--": """import torch.distributed
from torch.nn.parallel import DistributedDataParallel
rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=ranks)
""",
    "    rank, ranks = grsgd.rank(), grsgd.size()  # <--": "",
    'o.algorithm == "parameter_server":': "False:",
    "    optimizer = grsgd.distribute(model, optimizer, o.algorithm, timeout=o.timeout, **o.options)  # <--": "",
    "else model": "else DistributedDataParallel(model)",
    "            with precision:": """            forward.require_backward_grad_sync = micro_batch is micro_batches[-1]
            with precision:""",
    "grsgd.surviving(optimizer, steps, schedule=schedule)": "steps",
    "        optimizer.synchronize()  # <--": "",
    "optimizer.averaged_model()": "model",
    "grsgd.is_main()": "rank == 0",
    "optimizer.state_dict(algorithm=False)": "optimizer.state_dict()",
    "    optimizer.finish()  # <--": "",
}
"""The lines of the script that differ in a script for DDP."""

COMPILED = pytest.mark.skipif(which("g++") is None, reason="torch.compile needs g++")


def test_the_script_equals_ddp_and_goes_on_with_other_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("MEETING", str(tmp_path / "meeting"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]))
    text = SCRIPT.read_text()
    for line, other in WITH_DDP.items():
        assert line in text
        text = text.replace(line, other)
    (tmp_path / "ddp.py").write_text(text)
    for script, ranks, more in (
        ("ddp.py", 2, ["--save", "ddp.pt"]),
        (SCRIPT, 2, ["--save", "ours.pt"]),
        (SCRIPT, 3, ["--save", "half.pt", "--steps", "3"]),
        (SCRIPT, 2, ["--save", "gone.pt", "--resume", "half.pt", "--algorithm", "parameter_server"]),
    ):
        code, output = launcher.mpiexec("openmpi", ranks, [script, *SIZES, *more], timeout=120, cwd=tmp_path)
        assert code == 0 and output.count("end: loss on unseen text") == 1, output
    ddp, ours, gone = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("ddp", "ours", "gone"))
    for name, parameter in ddp["model"].items():
        torch.testing.assert_close(ours["model"][name], parameter, rtol=0, atol=1e-6)
    assert gone["step"] == ours["step"] == 6 and gone["schedule"]["last_epoch"] == 6
    assert all(each["step"] > 3 for each in gone["optimizer"]["state"].values()), "the server goes on from 3 steps"


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [[], pytest.param(["--compile"], marks=COMPILED)])
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "diloco", "grsgd", "parameter_server"])
def test_the_script_in_bfloat16(algorithm, more, tmp_path):
    arguments = [SCRIPT, *SIZES, "--bfloat16", "--algorithm", algorithm, *more]
    code, output = launcher.mpiexec("openmpi", 2, arguments, timeout=120, cwd=tmp_path)
    assert code == 0 and output.count("end: loss on unseen text") == 1, output
