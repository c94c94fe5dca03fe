"""Mean gradient of all ranks, computed in the background of the backward pass, one bucket (part of the gradient) after
the other."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from grsgd.comm.driver import Driver
from grsgd.comm.pollables import Until
from grsgd.models.replica import Replica


def cut(sizes: Sequence[int], count: int) -> list[range]:
    """Return, for each bucket (part of the gradient), the range of indices of the bucket's parameters. The first of the
    returned ranges has the last parameters of the model, whose gradients the backward pass completes first. At most
    ``count`` buckets are returned, with about equal numbers of elements. A bucket consists of consecutive whole
    parameters.

    The model's flat vector of parameters is cut into ``count`` equal parts. Each parameter belongs to the part of the
    flat vector that contains the parameter's middle element. Parts of the flat vector to which no parameter belongs are
    left out.
    """
    buckets: dict[int, list[int]] = {}
    done, total = 0, max(sum(sizes), 1)
    for i in reversed(range(len(sizes))):
        middle = (2 * done + sizes[i]) * count // (2 * total)
        buckets.setdefault(min(middle, count - 1), []).append(i)
        done += sizes[i]
    return [range(parameters[-1], parameters[0] + 1) for parameters in buckets.values()]


class BucketedMean:
    """Mean gradient of all ranks, computed bucket by bucket during the backward pass::

        background:  for bucket in buckets:             # the bucket of the last parameters first
                         wait until all of its gradients are complete
                         g[bucket] = allreduce(g[bucket]) / n

    All ranks send the buckets in the same order, from the last parameters to the first, even if the gradients are
    complete in another order. Each all-reduce begins after the end of the previous all-reduce, so messages of two
    all-reduces never mix. The backward pass only records that a gradient is complete, and sends no message. The driver
    (the object that runs generators) runs the all-reduces in the background.

    Source: Li et al. 2020, PyTorch Distributed: Experiences on accelerating data parallel training, section 3.2.

    Parameters
    ----------
    replica
        Replica whose ``grads`` are averaged, in place.
    count
        Largest number of buckets; every bucket has at least one parameter.
    allreduce
        ``allreduce(array)`` returns a generator that replaces ``array`` by its mean over all ranks, and yields each
        object it waits for.
    """

    def __init__(self, replica: Replica, driver: Driver, count: int, allreduce: Callable):
        self.replica, self.driver, self.allreduce = replica, driver, allreduce
        sizes = [p.numel() for p in replica.trained]
        self.parameters = cut(sizes, count)
        begins = np.cumsum([0, *sizes]).tolist()
        self.places = [slice(begins[bucket.start], begins[bucket.stop]) for bucket in self.parameters]
        self.bucket_of = {i: k for k, bucket in enumerate(self.parameters) for i in bucket}
        self.missing: list[set[int]] = []
        """Per bucket, the set of parameters whose gradients are not complete yet in this step."""
        self.complete = 0
        """Number of buckets before the first bucket with an incomplete gradient."""
        self.averaging = None
        """Handle of the background task that averages the buckets. The background task that averages the buckets begins
        when the first gradient of a step is complete."""

    def gradient_ready(self, parameter: int):
        """Record that the gradient of ``parameter`` is complete. Raise RuntimeError if `gradient_ready` has been called
        for ``parameter`` before in the same step."""
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
        """Generator, run in the background, that averages the gradients over all ranks, one bucket after the other."""
        for k, place in enumerate(self.places):
            yield Until(partial(self.is_complete, k), f"the gradients of bucket {k}")
            yield from self.allreduce(self.replica.grads.array[place])

    def is_complete(self, bucket: int) -> bool:
        return bucket < self.complete

    def finish(self):
        """Generator, run after all gradients are complete, that waits until all buckets are averaged."""
        self.complete = len(self.places)
        if self.averaging is None:  # no gradient was recorded, so no background task averages buckets
            yield from self.average_buckets()
        else:
            yield self.averaging
            self.averaging = None
