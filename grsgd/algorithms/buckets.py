"""The gradient in buckets, whose means are taken in the background of the backward pass that finishes them."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from grsgd.comm.driver import Driver
from grsgd.comm.pollables import Until
from grsgd.models.replica import Replica


def cut(sizes: Sequence[int], count: int) -> list[range]:
    """Return which parameters are in each bucket, from the last parameter to the first: at most ``count`` buckets of
    whole parameters that follow each other, and about as many elements each.

    A parameter belongs to that of ``count`` equal parts in which its middle lies; parts without any are left out.
    """
    buckets: dict[int, list[int]] = {}
    done, total = 0, max(sum(sizes), 1)
    for i in reversed(range(len(sizes))):
        middle = (2 * done + sizes[i]) * count // (2 * total)
        buckets.setdefault(min(middle, count - 1), []).append(i)
        done += sizes[i]
    return [range(parameters[-1], parameters[0] + 1) for parameters in buckets.values()]


class BucketedMean:
    """The mean gradient of all ranks, taken bucket by bucket while the backward pass goes on::

        background:  for bucket in buckets:             # those of the last parameters first
                         wait until all of its gradients are there
                         g[bucket] = allreduce(g[bucket]) / n

    All ranks send the buckets in this one order, whatever order their gradients come in. One all-reduce follows the
    other, so their messages never mix. That gradients are there is noted, and nothing sent, within the backward pass;
    what moves the background does the rest.

    Source: Li et al. 2020, PyTorch Distributed: Experiences on accelerating data parallel training, section 3.2.

    Parameters
    ----------
    replica
        Whose ``grads`` are averaged, in place.
    count
        How many buckets, at most.
    allreduce
        ``allreduce(array)``: a schedule that makes an array the mean over all ranks.
    """

    def __init__(self, replica: Replica, driver: Driver, count: int, allreduce: Callable):
        self.replica, self.driver, self.allreduce = replica, driver, allreduce
        sizes = [p.numel() for p in replica.trained]
        self.parameters = cut(sizes, count)
        begins = np.cumsum([0, *sizes]).tolist()
        self.places = [slice(begins[bucket.start], begins[bucket.stop]) for bucket in self.parameters]
        self.bucket_of = {i: k for k, bucket in enumerate(self.parameters) for i in bucket}
        self.missing: list[set[int]] = []
        """Of each bucket, the parameters whose gradients are not there yet."""
        self.complete = 0
        """How many buckets, from the first on, have all of their gradients."""
        self.averaging = None
        """The schedule in the background, from the first gradient of a step on."""

    def gradient_ready(self, parameter: int):
        """Note that a gradient is there; raises RuntimeError if it was noted in this step before."""
        if self.averaging is None:
            self.missing = [set(bucket) for bucket in self.parameters]
            self.complete = 0
            self.averaging = self.driver.start(self.average_buckets())
        missing = self.missing[self.bucket_of[parameter]]
        if parameter not in missing:
            name = self.replica.name_of(self.replica.trained[parameter])
            raise RuntimeError(
                f"the gradient of {name!r} was finished twice in one step (a checkpoint with use_reentrant=True?), and "
                "may have been sent already: leave algorithm.buckets out"
            )
        missing.remove(parameter)
        while self.complete < len(self.missing) and not self.missing[self.complete]:
            self.complete += 1

    def average_buckets(self):
        """Background schedule: the means, one bucket after the other."""
        for k, place in enumerate(self.places):
            yield Until(partial(self.is_complete, k), f"the gradients of bucket {k}")
            yield from self.allreduce(self.replica.grads.array[place])

    def is_complete(self, bucket: int) -> bool:
        return bucket < self.complete

    def finish(self):
        """Schedule: the means of all buckets are there when it ends; all gradients are when it begins."""
        self.complete = len(self.places)
        if self.averaging is None:  # none of them was noted
            yield from self.average_buckets()
        else:
            yield self.averaging
            self.averaging = None
