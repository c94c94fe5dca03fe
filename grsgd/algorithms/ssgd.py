"""SSGD: synchronous SGD in which every rank sends its gradient to all other ranks."""

from math import comb
from typing import Literal

from pydantic import Field

from grsgd.algorithms.summing import INT64_SUM, Summing, SummingOptions
from grsgd.comm.coded.without_redundancy import LocalSum, PerBlock


class SSGDOptions(SummingOptions):
    accounting: Literal["local-sum", "per-block"] = Field(
        "local-sum",
        description="local-sum: a rank sends the sum of its blocks' gradients; per-block: a rank sends each block's "
        "gradient, as the CSSGD paper counts",
    )
    r: int = Field(1, ge=1, description="cut the batch into C(n, r) blocks, as CSSGD with redundancy r does")


class SSGD(Summing, name="ssgd"):
    """Each rank sends its gradient to all other ranks. SSGD is the baseline of CSSGD, without redundancy. Rank i of n
    ranks computes::

        g_i = sum of the gradients of i's blocks, as int32
        multicast g_i to all others
        g = sum over i of g_i                   # exact, so the same on all ranks
        x = x - eta g

    Per step a rank sends M (the bytes of a gradient), if a multicast to several ranks counts once, and receives (n-1)
    M. If the batch is cut into the same blocks in SSGD and in CSSGD, both algorithms compute the same models, bit for
    bit.
    """

    paper = (
        "Li, Xie, Mao, Xu, Zhu, Zhang 2021, A synchronous gradient descent algorithm based on distributed coding, "
        "Computer Engineering"
    )
    Options = SSGDOptions

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        if options.r > ranks:
            raise ValueError(f"r = {options.r} with {ranks} ranks; allowed are 1 to {ranks}")

    @classmethod
    def arrays_held(cls, options, ranks):
        return INT64_SUM + -(-comb(ranks, options.r) // ranks) + ranks

    def choose_scheme(self, *arguments):
        return {"local-sum": LocalSum, "per-block": PerBlock}[self.options.accounting](*arguments)
