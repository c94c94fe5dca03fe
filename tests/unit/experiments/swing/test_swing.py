"""The comparison of Swing and Bine with other all-reduces: what is compared, and what the results say."""

import math

import numpy as np
import pytest

from experiments.figures import write_csv
from experiments.swing import tables, verdict
from experiments.swing.contenders import (
    ALL_PORTS,
    BINE,
    BUCKET,
    HALVING,
    NEAR_FIRST,
    ONE_PORT,
    RING,
    SWING,
    TORUS_HALVING,
    TORUS_SWING,
    bucket_plans,
    contenders,
    powers_of_two,
)
from experiments.swing.crossing import Place, aligned, changes, crossing, places
from experiments.swing.measure import KIB, MIB, SIZES, STEP_SECONDS, AllreduceNumbers, AllreduceRun, measure, points
from experiments.swing.networks import GROUPED, SETTINGS, TORI
from grsgd.comm.allreduce.pieces import chunks
from grsgd.comm.allreduce.swing import swing_partners
from grsgd.comm.allreduce.torus_swing import torus_swing_allreduce
from grsgd.testing.simulated import Ranks, network_of
from tests.support.arrivals import array


@pytest.mark.parametrize(("ranks", "shape"), [(16, (4, 4)), (12, (2, 6)), (8, (2, 2, 2)), (16, None)])
def test_every_contender_sums_up(ranks, shape):
    """All do the same work, and all but the tree send as little as there can be, with n a power of two."""
    found = contenders(ranks, shape)
    assert set(found) == set(ONE_PORT if shape is None else (*ONE_PORT, *ALL_PORTS)) - (
        {NEAR_FIRST, TORUS_HALVING} if ranks == 12 else set()
    )
    xs = np.random.default_rng(ranks).standard_normal((ranks, 384)).astype("float32")
    for name, schedules in found.items():
        mine, simulated = xs.copy(), Ranks(ranks, network_of(eager_bytes=0), random=np.random.default_rng(1))
        for number, schedule in enumerate(schedules):
            parts = [chunks(x, len(schedules))[number] for x in mine]
            simulated.finish([schedule(*pair, number) for pair in zip(simulated.comms, parts, strict=True)])
        assert (mine == mine[0]).all(), name
        np.testing.assert_allclose(mine[0], xs.astype("float64").sum(0), atol=2e-5)
        if ranks == 16 and name != "tree":
            assert {int(comm.traffic.sent.sum()) for comm in simulated.comms} == {2 * 15 * 384 * 4 // 16}, name


@pytest.mark.parametrize("title", ["torus 8x8", "torus 4x4x4", "torus 6x6"])
def test_bucket_takes_its_closed_form(title):
    """Round the ring of each dimension, all cables full, with a latency for each step."""
    setting, M = SETTINGS[title], 64 * MIB
    n, D, B, L = setting.ranks, len(setting.shape), setting.spec.bandwidth, setting.spec.latency
    expected = 2 * (n - 1) / n * M / (2 * D) / B + 2 * sum(size - 1 for size in setting.shape) * L
    assert measure(AllreduceRun(title, BUCKET, M)).seconds == pytest.approx(expected, rel=1e-3)
    assert len(bucket_plans(setting.shape)) == 2 * D


def test_the_library_takes_as_long_step_by_step():
    """As parts that do not wait for each other, where all dimensions are equal."""
    setting = SETTINGS["torus 8x8"]
    ranks = Ranks(setting.ranks, setting.spec)
    ranks.finish([torus_swing_allreduce(comm, array(MIB), sizes=setting.shape) for comm in ranks.comms])
    assert ranks.env.now == pytest.approx(measure(AllreduceRun("torus 8x8", TORUS_SWING, MIB)).seconds)


def test_the_same_halving_from_another_place():
    assert powers_of_two(8)[0] == [1, 0, 3, 2, 5, 4, 7, 6] and powers_of_two(8, 1)[0] == [7, 2, 1, 4, 3, 6, 5, 0]
    assert powers_of_two(8, 1)[1][1] == 3


# ---- traffic between groups


def test_crossings_are_what_simulated_cables_carry():
    """A dragonfly has one cable between two groups; a message passes two between leaves and spine."""
    for title, size, cables in (("dragonfly, groups of 8", 8, 1), ("dragonfly, groups of 10", 10, 1)):
        for name, partners in ((BINE, swing_partners(64)), (NEAR_FIRST, powers_of_two(64))):
            result = measure(AllreduceRun(title, name, 64 * KIB))
            assert result.over_global / (64 * KIB) == pytest.approx(cables * crossing(partners, Place(size, 0)))
    result = measure(AllreduceRun("tapered tree, leaves of 10", BINE, 64 * KIB))
    assert result.over_global / (64 * KIB) == pytest.approx(2 * crossing(swing_partners(64), Place(10, 0)))


def test_crossings_by_hand():
    """Four ranks, groups of two: all cross in the second step of halving, a quarter of the array, twice; of Swing, too,
    and in it the second step is over 1 to the other side. Begun in the middle of a group, it is the first step."""
    assert crossing(powers_of_two(4), Place(2, 0)) == crossing(swing_partners(4), Place(2, 0)) == 2 * 4 / 4
    assert crossing(powers_of_two(4), Place(2, 1)) == 2 * (4 / 2 + 4 / 4)
    assert crossing(swing_partners(4), Place(2, 1)) == 2 * (4 / 2 + 2 / 4)


def test_groups_of_powers_of_two_are_bines_worst():
    """Filled from the first rank on, they fit the partners of halving and doubling; else shorter distances tell."""
    assert (changes(64, aligned(64)) >= 0).all() and changes(64, [Place(8, 0)])[0] == pytest.approx(24 / 14 - 1)
    found = changes(64, places(64))
    assert -0.5 < found.min() < -0.3 and np.median(found) < -0.1 and np.mean(found < 0) > 0.5
    assert len(places(64)) == sum(range(2, 33)) and aligned(64)[-1] == Place(32, 0)


# ---- verdicts


def results_of(seconds, over_global=lambda point: 1):
    return {point: AllreduceNumbers(seconds(point), 1, over_global(point), 1) for point in points(SETTINGS)}


def test_points():
    found = points(SETTINGS)
    assert len(found) == len(set(found)) and found[0].setting == "torus 16x16"
    assert {point.step_seconds for point in found} == {0.0, STEP_SECONDS}
    for title, setting in SETTINGS.items():
        setting.spec.check_ranks(setting.ranks)
        assert setting.shape is None or math.prod(setting.shape) == setting.ranks == setting.spec.cabling.places
        names = {point.contender for point in found if point.setting == title}
        assert {SWING, BINE, RING} <= names and (TORUS_SWING in names) == (setting.shape is not None)
        assert {point.nbytes for point in found if point.setting == title} == set(SIZES)


def test_gains_are_over_the_fastest_of_the_others():
    ours = {SWING: 2.0, TORUS_SWING: 1.0, HALVING: 3.0, BUCKET: 4.0, TORUS_HALVING: 1.5}
    results = results_of(lambda point: ours.get(point.contender, 8.0))
    found = verdict.gain(results, verdict.ONE_PORT, "torus 8x8", MIB)
    assert found == verdict.Gain(1.5, HALVING, "torus 8x8", MIB)
    assert verdict.gain(results, verdict.ALL_PORTS_AND_STEPS, "torus 8x8", MIB).fastest == TORUS_HALVING
    assert verdict.gain(results, verdict.ALL_PORTS, "torus 6x6", MIB).times == 4
    assert verdict.gain(results, verdict.ALL_PORTS, "dragonfly, groups of 8", MIB) is None


@pytest.mark.parametrize(("times", "word"), [(3.1, "reproduced"), (2.0, "partly reproduced"), (0.9, "not reproduced")])
def test_verdict_on_swing(times, word):
    seconds = {SWING: 1.0, TORUS_SWING: 1.0}
    lines = list(verdict.verdicts(results_of(lambda point: seconds.get(point.contender, times))))
    assert lines[0].startswith(f"Swing, up to 3 times as fast on tori: {word}. At most {times:.2f} times as fast")
    assert len(lines) == 1 + 3 + 3 + 1 and "on the others: swing is the fastest in " in lines[-2]


def test_verdict_on_bine():
    nbytes = {BINE: 800, NEAR_FIRST: 1000, HALVING: 4000}
    results = results_of(lambda point: 1.0, lambda point: nbytes.get(point.contender, 500))
    said = verdict.on_bine(results, [setting.title for setting in GROUPED])
    assert said.startswith("Bine, up to 33% less over global links, and consistently less: partly reproduced. On these")
    assert f"against {NEAR_FIRST}: -20% (" in said and "farthest: -80% to -80%." in said
    assert "median -14%" in verdict.on_groups()
    assert verdict.word_on_traffic([-0.31, -0.1]) == verdict.REPRODUCED
    assert verdict.word_on_traffic([-0.31, 0.1]) == verdict.word_on_traffic([-0.2, -0.1]) == verdict.PARTLY
    assert verdict.word_on_traffic([0.2, 0.0]) == verdict.NOT


def test_where_both_are_equal():
    results = results_of(lambda point: 2.0 if point.contender == BINE and point.setting == "torus 6x6" else 1.0)
    said = verdict.on_both(results)
    assert f"on {len(SETTINGS) - 1} of {len(SETTINGS)} networks" in said and said.endswith("they differ: torus 6x6.")


def test_tables_and_figures(tmp_path):
    results = results_of(lambda point: 1.0, lambda point: point.nbytes)
    times, traffic = tables.times(results), tables.traffic(results)
    assert times.count("\n") == 1 + 3 * len(TORI) + len(GROUPED) and "| 4 KiB " in times and "1.00 bucket" in times
    assert traffic.count("\n") == 1 + len(GROUPED) and "1.0 (0.00)" in traffic and "+0%" in traffic
    write_csv(results, tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + len(results)
    one = {point: found for point, found in results.items() if point.setting == "torus 6x6"}
    assert tables.times(one).count("\n") == 4 and "reproduced" in next(iter(verdict.verdicts(one)))


def test_repeated_it_is_the_same_to_the_last_bit():
    for name in (SWING, TORUS_SWING, BUCKET):
        point = AllreduceRun("torus 4x4x4", name, 64 * KIB, STEP_SECONDS if name != SWING else 0.0)
        assert measure(point) == measure(point)


def test_steps_take_their_time():
    """Twice six steps a rank on 64 ranks, a microsecond each; they do not overlap, so it is exact."""
    plain, longer = (measure(AllreduceRun("torus 8x8", TORUS_SWING, MIB, seconds)) for seconds in (0.0, STEP_SECONDS))
    assert longer.seconds - plain.seconds == pytest.approx(12 * STEP_SECONDS)
