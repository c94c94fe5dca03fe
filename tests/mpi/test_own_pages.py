"""The scripts on the pages for own code, on two ranks: every script after its change, and every example of a loop."""

import importlib.util
import json
import re

import grsgd
from tests.support import launcher

PAGES = launcher.ROOT / "docs" / "how-to"
DIFFERENCES = [PAGES / "from" / f"{name}.md" for name in ("ddp", "horovod", "bluefog", "torchft", "hivemind")]
OF_TRAINERS = [name for name in ("lightning", "accelerate") if importlib.util.find_spec(name)]
"""Names of the pages whose libraries are installed; the scripts of Accelerate are the last, as they start
torch.distributed."""
LOOPS = [PAGES / "own-loops.md", PAGES / "own-scripts.md"]
PARTS = [(launcher.ROOT / "README.md", 0), (PAGES / "data.md", 0), (PAGES / "failures.md", 0)]
"""Pages, each with the number of its block that is a part of a loop. The other block of failures.md takes checkpoints,
which only a job under ``--with-ft ulfm`` can do: tests/faults has such jobs."""
NANOGPT = launcher.ROOT / "experiments" / "demo" / "nanogpt.py"
MARK = "  # <--"

DRIVER = '''
import importlib, json, os, signal, types
import torch, grsgd
from mpi4py import MPI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class SAM(torch.optim.Optimizer):
    """Foret et al. 2021, as far as a page shows it."""

    def __init__(self, params, base, **kwargs):
        super().__init__(params, kwargs)
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad):
        self.old = [p.clone() for group in self.param_groups for p in group["params"]]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad):
        for p, old in zip([p for group in self.param_groups for p in group["params"]], self.old):
            p.copy_(old)
        self.base_optimizer.step()
        self.zero_grad()


def loss_of(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)


def accuracy(model):
    return (model(x).argmax(1) == y).double().mean().item()


def net_of(layers):
    """Return the class of a LightningModule that trains ``layers``."""
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def training_step(self, batch, index):
            return loss_of(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Net


x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()
scripts = json.load(open("scripts.json")) if __name__ == "__main__" else ()  # workers of loaders import this file
for name, code in scripts:
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = dict(globals(), train=TensorDataset(x, y), epochs=2, first=x[:8], first_labels=y[:8], second=x[8:])
    names |= {"second_labels": y[8:], "batches": [(x, y)] * 40, "loader": [(x, y)] * 4, "loss_function": loss_of}
    names |= {"steps": 4, "batch": lambda step: (x, y)}
    if name == "lightning.md":
        names |= {"lightning": importlib.import_module("lightning"), "Net": net_of(model)}
    if "distribute(" not in code and "grsgd.integrations" not in code:
        algorithm, options = ("grsgd", {}) if "rest()" in code else ("ring_allreduce", {})
        optimizer = grsgd.distribute(model, optimizer, algorithm, **({"buckets": 2} if "no_sync" in code else options))
        if "surviving(" not in code:  # which must follow distribute() at once
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    def step(x, y, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    names |= {"optimizer": optimizer, "model": model, "step": step}
    if "surviving(" not in code:
        names |= {"loss": loss_of(model(x), y)}
    names |= {"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
    exec(compile(code, name, "exec"), names)
    for left in list(grsgd.own_loop.distributed_optimizer.unfinished):
        left.finish()
    sums = MPI.COMM_WORLD.allgather(sum(p.sum().item() for p in model.parameters()))
    assert len(set(sums)) == 1, name
    if grsgd.is_main():
        print("\\nran", name)  # a progress bar may have left its line open
'''


def after(difference: str) -> str:
    """Return a script after its change: the lines of a difference but for the removed ones."""
    return "\n".join(line[1:] for line in difference.splitlines() if not line.startswith("-"))


def blocks(page, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_scripts_after_their_change_and_examples_of_loops_run(tmp_path):
    scripts = [(page.name, after(blocks(page, "diff")[0])) for page in DIFFERENCES]
    scripts += [(f"{page.name} {number}", code) for page in LOOPS for number, code in enumerate(blocks(page, "python"))]
    scripts += [(f"a part of {page.name}", blocks(page, "python")[number]) for page, number in PARTS]
    for name in OF_TRAINERS:
        page = PAGES / "from" / f"{name}.md"
        scripts.append((page.name, after(blocks(page, "diff")[0])))
        scripts += [(f"a loop of {page.name}", code) for code in blocks(page, "python")]
    scripts = [(name, code) for name, code in scripts if "torch.cuda" not in code]
    (tmp_path / "scripts.json").write_text(json.dumps(scripts))
    (tmp_path / "driver.py").write_text(DRIVER)
    code, output = launcher.mpiexec("openmpi", 2, ["driver.py"], timeout=240, cwd=tmp_path)
    assert code == 0, output
    assert re.findall("^ran (.*)$", output, re.MULTILINE) == [name for name, _ in scripts], output
    assert {"mine.h5", "model.pt", "rank-0.pt", "rank-1.pt"} <= {path.name for path in tmp_path.iterdir()}


def test_the_page_shows_the_lines_that_change_in_nanogpt():
    script = [line.partition(MARK)[0] for line in NANOGPT.read_text().splitlines()]
    difference = blocks(PAGES / "own-loops.md", "diff")[0].splitlines()
    shown = [line[1:] for line in difference if line[0] in "+ " and line.strip() != "..."]
    places = iter(script)
    assert all(line in places for line in shown), "in this order"
    marked = [line.partition(MARK)[0] for line in NANOGPT.read_text().splitlines() if MARK in line]
    assert [line[1:] for line in difference if line[0] == "+"] == marked and len(marked) == 10


def test_nanogpt_learns_on_two_ranks(tmp_path):
    (tmp_path / "text.txt").write_text("abcabcabd" * 200)
    sizes = "--steps 50 --batch 8 --block 16 --layers 1 --heads 2 --width 16".split()
    script = [NANOGPT, "--text", "text.txt", *sizes]
    code, output = launcher.mpiexec("openmpi", 2, script, timeout=120, cwd=tmp_path)
    assert code == 0 and output.count("nats per character") == 1, output
    run = grsgd.load_run(tmp_path / "nanogpt.h5")
    assert run.attributes["final_test_nats"] < 1.2 and list(run.ranks["steps"]) == [50, 50]
