"""Options that no command has, and the hints at options that are near."""

import pytest

from grsgd.cli import main


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["train", "a.toml", "--wanbd", "x"], "unrecognized arguments: --wanbd x (did you mean --wandb?)"),
        (["simulate", "a.toml", "--network", "-1gbit", "--rnaks=3"], "--rnaks=3 (did you mean --ranks?)"),
        (["run", "--nproc-per-node", "2", "a.py"], "--nproc-per-node (the number of ranks: grsgd run -n RANKS)"),
        (["simulate", "a.toml", "--np", "4"], "unrecognized arguments: --np 4 (did you mean --ranks?)"),
        (["run", "a.toml", "--wanbd", "x"], "(did you mean --wandb?)"),
        (["--vresion"], "unrecognized arguments: --vresion (did you mean --version?)"),
        (["report", "a.h5", "--zzz"], "unrecognized arguments: --zzz"),
    ],
)
def test_unknown_options(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text('[algorithm]\nname = "dpsgd"\n')
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("grsgd: error: ") and error.endswith(f"{line}\n") and error.count("\n") == 1
