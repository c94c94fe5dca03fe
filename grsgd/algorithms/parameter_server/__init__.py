"""Parameter server: the algorithm for workers and servers, and the strategies that decide when a server applies
gradients and answers workers."""

from grsgd.algorithms.parameter_server.algorithm import ParameterServer, ServerOptions

__all__ = ["ParameterServer", "ServerOptions"]
