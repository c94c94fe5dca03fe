"""Table of the strategies of a parameter server, by the strategy's name in the option ``strategy``."""

from grsgd.algorithms.parameter_server.adsp import Adsp
from grsgd.algorithms.parameter_server.bounded import Asp, Bsp, Dssp, Ssp
from grsgd.algorithms.parameter_server.strategy import Strategy
from grsgd.algorithms.parameter_server.time_optimal import MSync, Rennala, Ringmaster

STRATEGIES: dict[str, type[Strategy]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp": Ssp,
    "dssp": Dssp,
    "adsp": Adsp,
    "m_sync": MSync,
    "rennala": Rennala,
    "ringmaster": Ringmaster,
}
