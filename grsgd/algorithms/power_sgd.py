"""PowerSGD: the mean gradient of all ranks, compressed to matrices of low rank, which can be summed by all-reduces.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import math

from grsgd.comm.compression.error_feedback import is_finite
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.models.replica import shaped
from grsgd.seeding import Purpose, generator

torch = LazyModule("torch")


class PowerSGD:
    """Mean gradient of all ranks, approximated with matrices of low rank. A gradient that is a matrix M, of shape
    [rows, columns], is sent as two thin matrices P and Q::

        M = gradient + e
        P = orthogonal columns of the mean over all ranks of M Q
        Q = mean over all ranks of M^T P
        gradient = P Q^T;  e = M - P Q^T

    In each training step PowerSGD makes one iteration of the power method, which begins with the matrix Q of the
    previous step. A gradient with more than two dimensions is treated as a matrix: the first dimension gives the rows,
    and all further dimensions together give the columns. A gradient is sent uncompressed if it has fewer than two
    dimensions, or if its matrices P and Q together would have at least as many elements as the gradient.

    All ranks compute the matrix P from the same all-reduced sum. So the models of all ranks are equal bit for bit if
    all ranks run on the same model of processor, which rounds in the same way.

    Source: Vogels, Karimireddy, Jaggi 2019, PowerSGD: Practical low-rank gradient compression for distributed
    optimization, algorithms 1 and 2.

    Parameters
    ----------
    trained
        Trained parameters of the model, in the order of their gradients in the flat gradient vector.
    columns
        Rank of the compressed matrices: number of columns of P and Q.
    seed
        Seed of the first Q.
    e
        Zeros, as many as the flat gradient has elements: memory for the errors of compression.
    """

    def __init__(self, trained: list[torch.nn.Parameter], columns: int, seed: int, e: torch.Tensor):
        self.matrices, self.whole, at = [], [], 0
        for p in trained:
            place, size = slice(at, at + p.numel()), p.numel()
            rows, others = len(p) if p.dim() else 1, size // (len(p) if p.dim() else 1)
            thin = min(columns, rows, others)
            if p.dim() > 1 and thin * (rows + others) < size:
                self.matrices.append((place, rows, others, thin))
            else:
                self.whole.append(place)
            at = place.stop
        of_P = [(rows, thin) for _, rows, _, thin in self.matrices]
        of_Q = [(others, thin) for _, _, others, thin in self.matrices]
        sent = [(place.stop - place.start,) for place in self.whole]
        first, second = (sum(map(math.prod, shapes)) for shapes in (of_P + sent, of_Q))
        self.first, self.second = (Flat.zeros(n, e.dtype, e.device) for n in (first, second))
        """The two arrays that all-reduces sum. The array ``first`` has the matrices P of all gradients, and the
        gradients that are sent uncompressed. The array ``second`` has the matrices Q of all gradients."""
        self.e, self.Q = e, self.second.tensor
        if second and not self.Q.is_meta:
            self.Q.copy_(torch.from_numpy(generator(Purpose.COMPRESSION, seed).standard_normal(second)))
        parts = shaped(self.first.tensor, of_P + sent)
        self.Ps, self.sent = parts[: len(of_P)], parts[len(of_P) :]
        self.Qs = shaped(self.second.tensor, of_Q)

    def average(self, g: torch.Tensor, allreduce):
        """Generator that replaces the flat gradient ``g`` by an approximate mean over all ranks. ``allreduce(array)``
        returns a generator that replaces ``array`` by its exact mean, and yields each object it waits for.

        If the gradient of any rank is not finite, ``g`` becomes NaN on all ranks, and the errors of compression ``e``
        stay unchanged.
        """
        Ms = [self.e[place].view(rows, others) for place, rows, others, _ in self.matrices]
        if is_finite(g):
            self.e.add_(g)
            for M, P, Q in zip(Ms, self.Ps, self.Qs, strict=True):
                torch.mm(M, Q, out=P)
            for place, sent in zip(self.whole, self.sent, strict=True):
                sent.copy_(self.e[place])
        else:
            g.zero_()
            self.first.tensor.fill_(math.nan)
        yield from allreduce(self.first.array)
        if not is_finite(self.first.tensor):
            self.e.sub_(g)
            g.fill_(math.nan)
            return
        for M, P, Q in zip(Ms, self.Ps, self.Qs, strict=True):
            orthogonalise(P)
            torch.mm(M.T, P, out=Q)
        yield from allreduce(self.second.array)
        for (place, rows, others, _), P, Q in zip(self.matrices, self.Ps, self.Qs, strict=True):
            torch.mm(P, Q.T, out=g[place].view(rows, others))
            self.e[place].sub_(g[place])
        for place, sent in zip(self.whole, self.sent, strict=True):
            g[place] = sent
            self.e[place] = 0


def orthogonalise(P: torch.Tensor):
    """Make the columns of ``P`` orthogonal and of length 1, in place. A column that depends linearly on earlier columns
    becomes 0."""
    for k in range(P.shape[1]):
        column = P[:, k]
        before = column.norm()
        if k:
            for _ in range(2):  # one subtraction leaves rounding errors, so a second one follows
                column.sub_(P[:, :k] @ (P[:, :k].T @ column))
        length = column.norm()
        column.mul_(torch.where(length > 1e-6 * before, 1 / length, 0))
