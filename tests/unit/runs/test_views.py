"""A run in Python: its line, its page in a notebook, its frames and its figure."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import grsgd
from grsgd.runs.run_file import save_run
from tests.support.runs import fake_run

ROOT = Path(__file__).parents[3]


def test_a_run_is_a_line_at_a_prompt():
    whole = "<Run: gossip, 4 ranks, mnist/mlp, seed 1; completed; accuracy 80.00 % final, 80.00 % best; time 50.0 s; "
    assert repr(fake_run()) == f"{whole}sent 12.00 MiB; snapshots 5>"
    broken = repr(fake_run(accuracy=False, reason="rank 1 lost:\ngone", clock="virtual", virtual_seconds=2.0))
    assert "; failed: rank 1 lost: gone; training loss 0.4; simulated time 2.00 s; " in broken
    run = fake_run(snapshots=0)
    assert repr(run).endswith("snapshots 0>")
    del run.attributes["label"]
    assert repr(run) == "<Run: gossip, incomplete>"


def test_a_page_in_a_notebook():
    run = fake_run("<b>", snapshots=9, reason="<script>")
    run.curve["consensus_distance"][:] = np.nan
    run.curve["own"] = np.arange(9.0) / 3
    html = run._repr_html_()
    assert "&lt;b&gt;, 4 ranks" in html and "<script" not in html and "nan" not in html
    header = [cell.strip() for cell in re.findall("<th[^>]*>(.*?)</th>", html)]
    assert header[:3] == ["time [s]", "step", "samples"] and "own" in header and "consensus_distance" not in header
    rows = re.findall("<tr>(.*?)</tr>", html.split("<thead>")[1])[1:]
    assert len(rows) == 5 and ">80 " in rows[-1] and ">2.667" in rows[-1]
    assert "<thead>" not in fake_run(snapshots=0)._repr_html_()


def test_frames():
    pytest.importorskip("pandas")
    run = fake_run(ranks=3)
    run.curve |= {"own": np.arange(5), "other": np.arange(7)}
    curve, ranks, traffic = run.to_pandas(), run.to_pandas("ranks"), run.to_pandas("traffic")
    assert curve["test_accuracy"].tolist() == run.curve["test_accuracy"].tolist() and curve.index.name == "snapshot"
    assert "own" in curve and "other" not in curve and curve["step"].dtype == np.int64
    assert ranks["wait_seconds"].tolist() == [0, 1, 2] and ranks.index.name == "rank"
    sent = traffic.set_index(["sender", "receiver"])["sent"]
    assert len(traffic) == 9 and sent[1, 1] == 0 and sent[2, 0] == 1024**2
    with pytest.raises(ValueError, match=r"to_pandas\('time'\): the allowed tables are 'curve', 'ranks', 'traffic'"):
        run.to_pandas("time")


def test_a_missing_pandas_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas\(\) needs the package pandas: pip install pandas$"):
        fake_run().to_pandas()


def test_a_figure():
    figure = fake_run("$x$").plot()
    assert [axes.get_title(loc="left") for axes in figure.get_axes()][-1] == "time split"
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_neither_torch_nor_mpi_nor_pandas_is_imported(tmp_path):
    save_run(tmp_path / "run.h5", fake_run())
    code = "import sys, grsgd; run = grsgd.load_run(sys.argv[1]); repr(run); run._repr_html_()\n"
    code += "print([name for name in ('torch', 'mpi4py.MPI', 'pandas', 'matplotlib') if name in sys.modules])"
    command = [sys.executable, "-c", code, str(tmp_path / "run.h5")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert isinstance(grsgd.load_run(tmp_path / "run.h5"), grsgd.Run)
