"""Parameter server: the algorithm on workers and servers, and the strategies by which a server applies gradients and
answers workers."""

from grsgd.algorithms.parameter_server.algorithm import ParameterServer, ServerOptions

__all__ = ["ParameterServer", "ServerOptions"]
