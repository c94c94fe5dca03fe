"""A backend that sends arrays in host memory by MPI, and arrays in GPU memory by a transport
(`grsgd.comm.gpu.transport`)."""

from collections.abc import Callable

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.transport import GpuTransport


class GpuBackend(MpiBackend):
    """An `MpiBackend` that can also send arrays in GPU memory (CuPy arrays).

    Parameters
    ----------
    mpi
        An mpi4py intracommunicator.
    make_transport
        Function ``make_transport(backend)`` that returns a `GpuTransport` between the ranks of ``backend``, an
        `MpiBackend`.
    timeout
        Time limit in seconds for making another communicator.
    """

    def __init__(self, mpi, make_transport: Callable[[MpiBackend], GpuTransport], timeout: float = 600.0):
        super().__init__(mpi, timeout)
        self.make_transport = make_transport
        self.host_memory = MpiBackend(mpi, timeout)
        self.transport = make_transport(self.host_memory)

    def carrier(self, array):
        """Return the object that sends and receives ``array``: an `MpiBackend` for NumPy arrays, or the transport for
        arrays in GPU memory."""
        return self.host_memory if type(array) is np.ndarray else self.transport

    def Isend(self, array, dest, tag):
        return self.carrier(array).Isend(array, dest, tag)

    def Issend(self, array, dest, tag):
        return self.carrier(array).Issend(array, dest, tag)

    def Irecv(self, array, source, tag):
        return self.carrier(array).Irecv(array, source, tag)

    def Ibcast(self, array, root):
        return self.carrier(array).Ibcast(array, root)

    def Iallreduce(self, array):
        return self.carrier(array).Iallreduce(array)

    def of(self, mpi):
        return GpuBackend(mpi, self.make_transport, self.timeout)
