"""Parameter server: the workers' side, the server's side, and the strategies by which it treats workers."""

from grsgd.algorithms.parameter_server.algorithm import ParameterServer, ServerOptions

__all__ = ["ParameterServer", "ServerOptions"]
