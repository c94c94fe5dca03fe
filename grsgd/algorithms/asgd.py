"""ASGD: a parameter server that never lets anybody wait."""

from grsgd.algorithms.parameter_server.algorithm import ParameterServer, ServerOptions


class ASGD(ParameterServer, name="asgd"):
    """The server applies each worker's gradient as it comes: `parameter_server` with strategy asp. Worker i, and the
    server of n workers::

        push grad(x) to the server          on push of g by i:  w = w - eta/n g
        wait for the answer: x                                  send w to i

    A gradient is n - 1 updates old on average (staleness).
    """

    paper = "Dean et al. 2012, Large scale distributed deep networks"
    Options = ServerOptions
