"""The script and the algorithm on the pages for the first hour, as a reader saves them."""

import re

from grsgd.cli import main
from tests.support import launcher

PAGES = launcher.ROOT / "docs" / "start"


def first_block(name: str) -> str:
    return re.search(r"```python\n(.*?)```", (PAGES / name).read_text(), re.DOTALL)[1]


def test_the_script_of_ten_lines_trains_on_two_ranks(tmp_path):
    (tmp_path / "train.py").write_text(first_block("own-loop.md"))
    code, output = launcher.mpiexec("openmpi", 2, ["train.py"], timeout=120, cwd=tmp_path)
    assert code == 0, output
    assert re.search(r"^loss (0\.0\d+|\d.*e-\d+) on 2 ranks$", output, re.MULTILINE), output


def test_the_algorithm_of_ten_lines_is_simulated(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(first_block("own-algorithm.md"))
    monkeypatch.chdir(tmp_path)
    demo = str(launcher.ROOT / "experiments" / "demo" / "dpsgd.toml")
    small = ["--set", "algorithm.name=mine.py:EveryStep", "--set", "train.epochs=1", "--timing-only"]
    assert main(["simulate", demo, *small, "--ranks", "4", "--out", "run.h5"]) == 0
    assert "run.h5: " in capsys.readouterr().out
