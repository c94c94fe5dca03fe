"""Where commands write run files that are given no name."""

import pytest

from grsgd import config
from grsgd.cli import main
from grsgd.cli.arguments import default_out
from grsgd.errors import RunFileError

CONFIG = """
[algorithm]
name = "{name}"
[model]
name = "mlp"
hidden = [4]
[data]
name = "synthetic"
samples = 100
[train]
steps = 4
snapshots = {snapshots}
"""


def parsed(tmp_path, name="parameter_server", snapshots=2):
    (tmp_path / "run.toml").write_text(CONFIG.format(name=name, snapshots=snapshots))
    return config.load(tmp_path / "run.toml", [])


def test_names_of_runs_of_one_second_differ(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len({default_out("dpsgd") for _ in range(4)}) == 4


def test_no_folder_for_results(monkeypatch, tmp_path, capsys):
    parsed(tmp_path, name="dpsgd")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").touch()
    with pytest.raises(RunFileError, match="results: File exists: name another file with --out"):
        default_out("dpsgd")
    assert main(["simulate", "run.toml"]) == 2
    assert capsys.readouterr().err == "grsgd: error: results: File exists: name another file with --out\n"
