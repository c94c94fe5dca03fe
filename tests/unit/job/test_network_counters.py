"""Reading the counters of network interfaces."""

import math

from grsgd.job import network_counters as interfaces

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 5000     50    0    0    0     0          0         0  6000     60    0    0    0     0       0
  eth0: 1200     12    0    0    0     0          0         0  3400     34    0    0    0     0       0
  ib0:7      1    0    0    0     0          0         0  9     1    0    0    0     0       0
"""


def test_all_interfaces_but_loopback_count(tmp_path, monkeypatch):
    table = tmp_path / "dev"
    table.write_text(TABLE)
    monkeypatch.setattr(interfaces, "COUNTERS", table)
    assert interfaces.counters().tolist() == [3409, 1207]


def test_no_counters(tmp_path, monkeypatch):
    monkeypatch.setattr(interfaces, "COUNTERS", tmp_path / "none")
    assert all(math.isnan(count) for count in interfaces.counters())
