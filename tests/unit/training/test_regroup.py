"""Which models and gradients count when the ranks that remain begin again. In whole runs:
``tests/integration/test_deaths.py``."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grsgd.models.flat import Flat
from grsgd.training.regroup import HOW_FAR_NUMBERS, HowFar, KeptGradient, NoGradient, Regrouping


def far(has_trained=1.0, steps=3.0, has_gradient=1.0, samples=12.0, counts=(1.0, 2.0)) -> HowFar:
    return HowFar(has_trained, steps, has_gradient, samples, 2.0, 1.0, np.array(counts))


class Group(str):
    """Context of a group, called by its text, of which this is the first rank."""

    comm, uncounted_comm = SimpleNamespace(rank=0), "uncounted"


def regrouped(told: list[HowFar] | None, equal_models: bool):
    """Return the result of `Regrouping.regroup` on the first rank, and what it has done, in order."""
    done, times = [], iter([10.0, 13.0])

    def noting(name, result=None):
        def schedule(*arguments):
            done.append((name, *arguments))
            yield from ()
            return result

        return schedule

    def numbers_of(each):
        return np.array([*each[:HOW_FAR_NUMBERS], *each.counts])

    def hand_over(comm, giver, is_wanted):
        rank.handed_over.append((comm, giver, is_wanted))
        yield from ()

    met = None if told is None else {7 + 2 * rank: numbers_of(each) for rank, each in enumerate(told)}
    driver = SimpleNamespace(
        clock=lambda: next(times), abandon=lambda: done.append(("abandon",)), abandoned=[SimpleNamespace()]
    )
    algorithm = SimpleNamespace(traits=SimpleNamespace(equal_models=equal_models))
    rank = SimpleNamespace(
        group=SimpleNamespace(close=noting("close"), meet=noting("meet", met), communicator="narrow"),
        checkpoints=SimpleNamespace(regrouped=noting("checkpoints")),
        trainer=SimpleNamespace(driver=driver, algorithm=algorithm, context="all", hand_over=hand_over),
        kept=SimpleNamespace(settle=lambda have: done.append(("settle", have))),
        longest_wait=0.5,
        last_wait=1.0,
        _how_far=lambda: (told or [far()])[0],
        _of_group=lambda context: Group(f"{context} in a group"),
        handed_over=[],
        _average_models=noting("average"),
        _go_on=noting("go on"),
    )
    schedule = Regrouping.regroup(rank)
    try:
        while True:
            next(schedule)
    except StopIteration as end:
        return end.value, done, rank


@pytest.mark.parametrize("equal_models", [True, False])
def test_ranks_a_step_behind_count_unless_models_are_equal(equal_models):
    told = [far(has_gradient=0), far(steps=2, has_gradient=0), far(samples=13, counts=(3.0, 1.0))]
    goes_on, done, rank = regrouped(told, equal_models)
    names = ["abandon", "close", "meet", "average", "go on", "checkpoints", "settle"]
    assert goes_on and [name for name, *_ in done] == names
    assert done[3] == ("average", "all in a group", [True, not equal_models, True])
    furthest = done[4][2]
    assert (furthest.steps, furthest.samples, furthest.counts.tolist()) == (3, 13, [3, 2])
    assert done[5] == ("checkpoints", "narrow", 0) and rank.is_together
    assert done[6] == ("settle", [False, False, True]) and rank.longest_wait == 4.0
    assert rank.handed_over == [("uncounted", 0, False)], "the second rank, a step behind, takes over the first's state"
    assert rank.trainer.driver.abandoned == []


@pytest.mark.parametrize("equal_models", [True, False])
def test_the_model_of_a_process_that_has_just_joined_does_not_count(equal_models):
    """Before the first step, too, when all ranks have taken equally many steps."""
    told = [far(steps=0, samples=0), far(has_trained=0.0, steps=0, samples=0)]
    _, done, _ = regrouped(told, equal_models)
    assert done[3][2] == [True, False] and done[6] == ("settle", [True, False])


def test_a_rank_a_step_behind_has_no_gradient_of_the_step():
    _, done, _ = regrouped([far(steps=3), far(steps=2, has_gradient=1)], True)
    assert done[6] == ("settle", [True, False])


def test_without_a_model_no_rank_goes_on():
    with pytest.raises(RuntimeError, match="the processes of all ranks that had a model have died"):
        regrouped([far(has_trained=0.0, steps=0)] * 2, True)


def test_a_rank_may_end_when_another_one_has_ended():
    goes_on, done, rank = regrouped(None, True)
    assert goes_on is False and [name for name, *_ in done] == ["abandon", "close", "meet"] and not rank.is_together
    assert rank.longest_wait == 0.5


def kept_gradient(steps=3) -> KeptGradient:
    flat = Flat.zeros(2, torch.float32, torch.device("cpu"))
    return KeptGradient(flat, SimpleNamespace(steps=steps, absent=None))


@pytest.mark.parametrize(
    "have, weight, absent", [([True, True], 1.0, 0), ([True, False], 2.0, 1), ([True, False, True, False], 2.0, 2)]
)
def test_a_step_is_taken_again_with_the_gradients_that_are_there(have, weight, absent):
    kept = kept_gradient()
    assert not kept.is_there and not kept.put_back()
    kept.gradient.array[:] = [1, 2]
    kept.keep()
    kept.gradient.array[:] = 9
    kept.settle(have)
    assert kept.is_there and not kept.is_absent and kept.progress.absent == absent
    assert kept.put_back() and kept.gradient.array.tolist() == [weight, 2 * weight]
    assert not kept.put_back(), "the next step begins with a new gradient"


def test_a_rank_without_its_gradient_has_no_share_in_the_step():
    kept = kept_gradient()
    kept.keep()
    kept.progress.steps += 1
    kept.gradient.array[:] = 9
    kept.settle([False, True])
    assert not kept.is_there and kept.is_absent and kept.put_back() and not kept.gradient.array.any()
    kept.keep()
    assert kept.is_there and not kept.is_absent


def test_without_any_gradient_the_step_is_begun_anew():
    kept = kept_gradient()
    kept.settle([False, False])
    assert not kept.is_absent and not kept.put_back() and kept.progress.absent is None
    none = NoGradient()
    none.keep()
    none.settle([True])
    assert not none.put_back() and not none.is_there and not none.is_absent
