"""ASGD (asynchronous SGD): a parameter server on which no worker waits for another worker."""

from grsgd.algorithms.parameter_server.algorithm import ParameterServer, ServerOptions


class ASGD(ParameterServer, name="asgd"):
    """The server applies each worker's gradient on arrival, like `parameter_server` with strategy asp. Worker i (left)
    and the server of n workers (right) compute::

        push grad(x) to the server          on push of g by i:  w = w - eta/n g
        wait for the answer: x                                  send w to i

    The staleness of a gradient is n - 1 updates of the model on average (n: number of workers).
    """

    paper = "Dean et al. 2012, Large scale distributed deep networks"
    Options = ServerOptions
