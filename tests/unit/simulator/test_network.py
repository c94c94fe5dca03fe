"""What a network is read from: rates, times, and TOML files; and what is refused, in one line."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grsgd import config as configuration
from grsgd.errors import ConfigError
from grsgd.simulator.compute import AfterWaits, ComputeTime, check_end, medians_and_sigmas, parse, seconds_of_steps
from grsgd.simulator.network import (
    AFTER_WAIT_SECONDS,
    MAX_SIGMA,
    ComputeSpec,
    LinkSpec,
    MissingLink,
    NetworkSpec,
    network,
)
from grsgd.units import as_duration, as_rate, duration, rate
from tests.support.seeded import untimed

BASE = 'bandwidth = "8gbit"\nlatency = "5us"\n'


@pytest.fixture
def file(tmp_path):
    """Writes a topology file; returns its path."""

    def write(text):
        path = tmp_path / "network.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8bit", 1.0),
        ("1gbit", 125e6),
        ("2.5Gbit", 312.5e6),
        (" 100 mbit ", 12.5e6),
        ("1e3kbit", 125e3),
        ("1tbit", 125e9),
    ],
)
def test_rate(text, value):
    assert rate(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "value"), [("50us", 50e-6), ("0s", 0.0), ("1.5ms", 1.5e-3), ("20 ns", 20e-9)])
def test_duration(text, value):
    assert duration(text) == pytest.approx(value, rel=1e-15)


def test_no_limit():
    assert rate("inf bit") == math.inf


@pytest.mark.parametrize(
    ("function", "text", "reason"),
    [
        (rate, "1foo", "unknown unit 'foo'; allowed: bit, kbit, mbit, gbit, tbit"),
        (rate, "1", "no unit; allowed: bit"),
        (rate, "fast", "not a number with a unit"),
        (rate, "", "not a number with a unit"),
        (rate, "1..2gbit", "'1..2' is not a number"),
        (rate, "0gbit", "must be positive"),
        (rate, "-1gbit", "must be positive"),
        (rate, "nan gbit", "not a number"),
        (duration, "-5us", "must be 0 or more"),
        (duration, "inf s", "finite"),
        (duration, "5m", "unknown unit 'm'; allowed: ns, us, ms, s"),
    ],
)
def test_wrong_quantity(function, text, reason):
    with pytest.raises(ValueError, match=f"(rate|time) '{text}'.*") as refused:
        function(text)
    assert reason in str(refused.value)


@untimed
@given(st.floats(1e-3, 1e13), st.floats(1e-12, 1e4))
def test_written_quantities_are_read_again(bytes_per_second, seconds):
    assert rate(as_rate(bytes_per_second)) == pytest.approx(bytes_per_second, rel=1e-3)
    assert duration(as_duration(seconds)) == pytest.approx(seconds, rel=1e-3)


def test_written_quantities():
    assert as_rate(401e6) == "3.208gbit" and as_duration(41.23e-6) == "41.23us" and as_duration(0.0) == "0ns"
    assert as_duration(12345.6) == "12346s"
    assert as_duration(1234.5) == "1234s" and as_duration(999.44) == "999.4s"


@pytest.mark.parametrize("medium", ["switch", "shared"])
def test_defaults_of_the_command_line(medium):
    spec = network(medium)
    assert spec.medium == medium and not spec.multicast
    assert (spec.bandwidth, spec.latency) == pytest.approx((125e6, 50e-6))
    assert network(f"{medium},2gbit,1ms").bandwidth == 250e6
    assert network() == network("switch") == network("1gbit,50us") == network("switch,1gbit,50us")


def test_file(file):
    spec = network(
        file(
            BASE
            + 'multicast = true\n[[link]]\nfrom = 0\nto = 1\nlatency = "1ms"\nboth_ways = true\n'
            + '[[link]]\nfrom = 1\nto = 2\nbandwidth = "1gbit"\n[[port]]\nrank = 2\nbandwidth = "4gbit"\n'
            + "[compute]\nmedian = 0.01\nslowdown = { 1 = 2.0 }\n"
        ),
    )
    assert spec.multicast and spec.port_bandwidth(0) == 1e9 and spec.port_bandwidth(2) == 5e8
    assert spec.link_latency(0, 1) == spec.link_latency(1, 0) == pytest.approx(1e-3)
    assert spec.link_latency(1, 2) == pytest.approx(5e-6)
    assert spec.link_bandwidth(1, 2) == 125e6 and spec.link_bandwidth(2, 1) == math.inf
    assert spec.compute.slowdown == {1: 2.0}
    spec.check_ranks(3)
    for ranks, named in ((2, "link from 1 to 2"), (1, "link from 0 to 1")):
        with pytest.raises(ConfigError, match=f"{named}: the run has {ranks} ranks; allowed numbers: 0 to {ranks - 1}"):
            spec.check_ranks(ranks)


def test_command_line_replaces_what_the_file_says(file):
    spec = network(file(BASE + "multicast = true\n") + ",1gbit,1us")
    assert (spec.bandwidth, spec.latency) == pytest.approx((125e6, 1e-6)) and spec.multicast


def test_only_links(file):
    spec = network(file('medium = "links"\n' + BASE + "[[link]]\nfrom = 0\nto = 1\n"))
    assert spec.link_latency(0, 1) == spec.link_latency(3, 3) == pytest.approx(5e-6)
    with pytest.raises(MissingLink, match="no link from rank 1 to rank 0; links from 1: none"):
        spec.link_bandwidth(1, 0)
    with pytest.raises(MissingLink, match="no link from rank 0 to rank 2; links from 0: 1"):
        spec.link_latency(0, 2)


LINK = "[[link]]\nfrom = 0\nto = 1\n"


def test_the_former_name_of_fairness_is_read(tmp_path):
    file = tmp_path / "net.toml"
    file.write_text('bandwidth = "1gbit"\nlatency = "50us"\nseniority = 0.8\n')
    assert network(str(file)).fairness == 0.8
    file.write_text('bandwidth = "1gbit"\nlatency = "50us"\nseniority = 0.8\nfairness = 0.9\n')
    with pytest.raises(ConfigError, match="seniority"):
        network(str(file))


def test_a_former_fairness_of_messages_says_what_was_in_the_queue(tmp_path):
    file = tmp_path / "net.toml"
    file.write_text('bandwidth = "1gbit"\nlatency = "50us"\nfairness = 0.8\nfairness_bytes = 1000\n')
    assert (network(str(file)).queue_bytes, network(str(file)).fairness) == (100, 1.0)
    file.write_text('bandwidth = "1gbit"\nlatency = "50us"\nfairness = 0.8\nfairness_bytes = 0\n')
    assert (network(str(file)).queue_bytes, network(str(file)).fairness) == (0, 0.8)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('multicast = "true"\n', "multicast"),
        ("multicast = 1\n", "multicast"),
        ("eager_bytes = 1.0\n", "eager_bytes"),
        ("eager_bytes = -1\n", "eager_bytes"),
        ("fairness = 0.09\n", "fairness"),
        ("fairness = 1.01\n", "fairness"),
        ("fairness = 0.5\nfairness_bytes = -1\n", "fairness_bytes"),
        ("queue_bytes = -1\n", "queue_bytes"),
        ("queue_bytes = 1.5\n", "queue_bytes"),
        ("speed = 1\n", "speed"),
        ('medium = "shared"\n[[port]]\nrank = 0\nbandwidth = "1gbit"\n', "a shared medium has no ports"),
        ('medium = "links"\n', "needs at least one"),
        (LINK + LINK, "link: from 0 to 1 is given twice"),
        (LINK + "[[link]]\nfrom = 1\nto = 0\nboth_ways = true\n", "link: from 0 to 1 is given twice"),
        (LINK + "both_ways = 1\n", "both_ways"),
        ('[[port]]\nrank = 2\nbandwidth = "1gbit"\n' * 2, "port: the port of rank 2 is given twice"),
        ('[[port]]\nrank = -1\nbandwidth = "1gbit"\n', "rank"),
    ],
)
def test_wrong_networks(file, text, named):
    with pytest.raises(ConfigError, match=named):
        network(file(BASE + text))


def test_a_network_is_not_changed_and_may_be_made_in_the_program():
    """By the names of its fields as well."""
    spec = NetworkSpec(bandwidth="1gbit", latency="1ms", link=[LinkSpec(source=0, dest=1, latency="2ms")])
    assert spec.link_latency(0, 1) == pytest.approx(2e-3) and spec.link_latency(1, 0) == pytest.approx(1e-3)
    with pytest.raises(ValidationError, match="frozen"):
        spec.latency = 0.0


def test_slower_ranks():
    compute = ComputeTime(2.0, slowdown={1: 1.5})
    assert [compute(rank, 0) for rank in range(3)] == [2.0, 3.0, 2.0]
    assert str(compute) == "constant:2.0, slowdown { 1 = 1.5 }"
    random = ComputeTime(2.0, 0.3, seed=4), ComputeTime(2.0, 0.3, seed=4, slowdown={1: 1.5})
    assert random[1](1, 7) == pytest.approx(1.5 * random[0](1, 7)) and random[1](0, 7) == random[0](0, 7)


def test_steps_after_a_wait():
    """The random numbers are those of other steps, and the change with the wait is even in the logarithm."""
    spec = ComputeSpec(median=4.0, sigma=0.4, after_wait=1.0, after_wait_sigma=0.1, slowdown={1: 2.0})
    compute = ComputeTime.of(spec, seed=3)
    assert str(compute) == "lognormal:4.0,0.4, after a wait lognormal:1.0,0.1, slowdown { 1 = 2 }"
    waited = [0.0]
    seconds = AfterWaits(compute, lambda: waited[0])
    assert seconds(1, 0) == compute(1, 0)
    for step, (wait, share) in enumerate([(1.0, 1.0), (AFTER_WAIT_SECONDS / 2, 0.5), (0.0, 0.0)]):
        waited[0] += wait
        drawn = math.log(compute(1, step) / 8.0) / 0.4
        median, sigma = 8.0 * (2.0 / 8.0) ** share, 0.4 + share * (0.1 - 0.4)
        assert seconds(1, step) == pytest.approx(median * math.exp(sigma * drawn))
    assert ComputeTime.of(ComputeSpec(median=4.0), seed=3).after_wait is None


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("constant:0", ("constant", [0.0])),
        ("lognormal:0.1,0.2", ("lognormal", [0.1, 0.2])),
        ("flops:1e12", ("flops", [1e12])),
        ("measured", ("measured", [])),
    ],
)
def test_compute_forms(text, read):
    assert parse(text) == read


@pytest.mark.parametrize("sigma", [0.0, 0.3, MAX_SIGMA])
def test_times_are_finite_whatever_the_sigma(sigma):
    compute = ComputeTime(*parse(f"lognormal:1,{sigma}")[1])
    assert all(0 < compute(0, step) < math.inf for step in range(1000))


def test_a_run_that_would_never_end_is_refused():
    def config(**end):
        content = {"algorithm": {"name": "gosgd"}, "model": {"name": "mlp"}, "data": {"name": "synthetic"}}
        return configuration.parse(content | {"train": end})

    check_end(config(seconds=1.0), ComputeTime(1e-3))
    check_end(config(steps=1), ComputeTime(0.0))
    for compute in (ComputeTime(0.0), ComputeTime(0.0, 0.3)):
        with pytest.raises(ConfigError, match="--compute .*:0.0.*train.seconds = 1 .*allowed: more than 0"):
            check_end(config(seconds=1.0), compute)


def test_with_a_share_of_a_core_a_step_is_measured_by_what_it_takes_of_the_processor():
    """Sleeping takes nothing; so does a process that has used up its share, until it may go on."""
    asleep = seconds_of_steps(lambda: time.sleep(0.02), 5)
    of_the_processor = seconds_of_steps(lambda: time.sleep(0.02), 5, share=0.5)
    assert len(asleep) == 5 and min(asleep) >= 0.02 > 4 * max(of_the_processor) > 0


def test_what_all_ranks_have_in_common_is_no_spread():
    rng = np.random.default_rng(0)
    common, own = rng.normal(0, 0.3, 4000), rng.normal(0, 0.1, (5, 4000))
    medians = np.array([1.0, 2.0, 1.0, 1.0, 0.5])
    found = medians_and_sigmas(medians[:, None] * np.exp(common + own))
    assert [median for median, _ in found] == pytest.approx(medians, rel=0.03)
    assert [sigma for _, sigma in found] == pytest.approx([0.1] * 5, rel=0.1)
    ((_, sigma),) = medians_and_sigmas(np.exp(common + own)[:1])
    assert sigma == pytest.approx(np.hypot(0.1, 0.3), rel=0.1)
