"""Numbers that are written while a run goes on."""

import os
import sys

import pytest

from grsgd.errors import ConfigError, RunFileError
from grsgd.runs.loggers import CsvLogger, TensorBoardLogger


def test_a_row_is_in_the_file_at_once_and_later_names_get_columns(tmp_path):
    path = tmp_path / "run.csv"
    logger = CsvLogger(path)
    assert path.read_text() == "step\n"
    logger.log(1, {"loss": 0.5})
    assert path.read_text() == "step,loss\n1,0.5\n"
    logger.log(2, {"loss": 0.25})
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n"
    logger.log(2, {"a, b": float("nan")})
    logger.log(3, {"loss": 1e-9, "a, b": 2})
    logger.close()
    assert path.read_text() == 'step,loss,"a, b"\n1,0.5,\n2,0.25,\n2,,nan\n3,1e-09,2.0\n'
    assert os.listdir(tmp_path) == ["run.csv"]


def test_an_older_file_is_replaced(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("step,other\n7,8\n")
    CsvLogger(path).close()
    assert path.read_text() == "step\n"


def test_a_link_to_a_csv_file_stays_one(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "run.csv")
    logger = CsvLogger(tmp_path / "link.csv")
    logger.log(1, {"loss": 0.5})
    logger.close()
    assert (tmp_path / "run.csv").read_text() == "step,loss\n1,0.5\n"
    assert (tmp_path / "link.csv").is_symlink()


@pytest.mark.parametrize(("path", "reason"), [("none/run.csv", "No such file or directory"), ("", "directory|busy")])
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
