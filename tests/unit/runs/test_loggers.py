"""Numbers that are written while a run goes on."""

import os
import sys
from types import SimpleNamespace

import pytest

from grsgd.errors import ConfigError, RunFileError
from grsgd.runs.loggers import CsvLogger, TensorBoardLogger, go_on


def test_a_row_is_in_the_file_at_once_and_later_names_get_columns(tmp_path):
    path = tmp_path / "run.csv"
    logger = CsvLogger(path)
    logger.log(1, {"loss": 0.5})
    assert path.read_text() == "step,loss\n1,0.5\n"
    logger.log(2, {"loss": 0.25})
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n"
    logger.log(2, {"a, b": float("nan")})
    logger.log(3, {"loss": 1e-9, "a, b": 2})
    logger.close()
    assert path.read_text() == 'step,loss,"a, b"\n1,0.5,\n2,0.25,\n2,,nan\n3,1e-09,2.0\n'
    assert os.listdir(tmp_path) == ["run.csv"]


def test_an_older_file_stays_until_the_first_row_replaces_it(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("step,other\n7,8\n")
    CsvLogger(path).close()
    assert path.read_text() == "step,other\n7,8\n", "a run that cannot begin takes nothing away"
    logger = CsvLogger(path)
    logger.log(1, {"loss": 0.5})
    assert path.read_text() == "step,loss\n1,0.5\n"
    logger.close()
    CsvLogger(tmp_path / "new.csv").close()
    assert os.listdir(tmp_path) == ["run.csv"]


def test_rows_of_a_run_that_goes_on_stay_up_to_the_step_where_it_does(tmp_path):
    """Not those of steps that are taken again, and not the curve that followed when the run was interrupted."""
    path = tmp_path / "run.csv"
    path.write_text('step,loss,"a, b"\n10,3.0,\n20,2.0,1\n30,1.5,\n0,,7\n15,,8\n')
    logger = CsvLogger(path)
    logger.go_on(20)
    assert path.read_text() == 'step,loss,"a, b"\n10,3.0,\n20,2.0,1\n'
    logger.log(25, {"loss": 1.75})
    logger.log(30, {"new": 4})
    logger.close()
    assert path.read_text() == 'step,loss,"a, b",new\n10,3.0,,\n20,2.0,1,\n25,1.75,,\n30,,,4.0\n'


@pytest.mark.parametrize("content", ["", "no table\n1,2\n", "step\nx\n", "loss,step\n1.0,5,extra\n"])
def test_a_file_that_is_no_log_is_none_to_go_on_with(tmp_path, content):
    (tmp_path / "run.csv").write_text(content)
    logger = CsvLogger(tmp_path / "run.csv")
    logger.go_on(4)
    logger.log(5, {"loss": 1})
    assert (tmp_path / "run.csv").read_text() == "step,loss\n5,1.0\n"


def test_only_loggers_that_can_are_told_that_a_run_goes_on(tmp_path):
    told = []
    go_on(SimpleNamespace(go_on=told.append), 7)
    go_on(SimpleNamespace(log=print), 7)
    assert told == [7]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user's")
def test_no_link_of_another_user_is_followed(tmp_path):
    shared, mine = tmp_path / "shared", tmp_path / "mine.csv"
    shared.mkdir()
    shared.chmod(0o1777)
    mine.write_text("precious")
    (shared / "live.csv").symlink_to(mine)
    os.lchown(shared / "live.csv", 65534, 65534)
    with pytest.raises(RunFileError, match="symbolic link of another user's"):
        CsvLogger(shared / "live.csv")
    assert mine.read_text() == "precious"


def test_a_link_to_a_csv_file_stays_one(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "run.csv")
    logger = CsvLogger(tmp_path / "link.csv")
    logger.log(1, {"loss": 0.5})
    logger.close()
    assert (tmp_path / "run.csv").read_text() == "step,loss\n1,0.5\n"
    assert (tmp_path / "link.csv").is_symlink()


@pytest.mark.parametrize(("path", "reason"), [("none/run.csv", "there is no directory"), ("", "directory|busy")])
def test_a_csv_file_that_cannot_be_written_is_named(tmp_path, path, reason):
    with pytest.raises(RunFileError, match=reason) as caught:
        CsvLogger(tmp_path / path)
    assert str(caught.value).startswith(str(tmp_path / path)) and "\n" not in str(caught.value)


def test_tensorboard_names_the_package_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        TensorBoardLogger(tmp_path)


def test_tensorboard_reads_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path / "events")
    logger.log(1, {"loss": 0.5})
    logger.log(3, {"loss": 0.25, "accuracy": 0.75})
    logger.log(2, {"loss": 7.0})
    logger.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (3, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [(3, 0.75)]


def test_tensorboard_leaves_out_what_a_run_that_goes_on_takes_again(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path / "events")
    for step in (1, 2, 3):
        logger.log(step, {"loss": step})
    logger.close()
    logger = TensorBoardLogger(tmp_path / "events")
    logger.go_on(2)
    logger.log(3, {"loss": 7.0})
    logger.close()
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1), (2, 2), (3, 7)]
