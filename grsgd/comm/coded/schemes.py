"""The schemes of the algorithm `cssgd`, by name."""

from grsgd.comm.coded.grouped import GroupedDirect, GroupedReduceScatter
from grsgd.comm.coded.scheme import Scheme
from grsgd.comm.coded.subsets import Coded, Uncoded

SCHEMES: dict[str, type[Scheme]] = {
    "coded": Coded,
    "uncoded": Uncoded,
    "grouped-direct": GroupedDirect,
    "grouped-rs": GroupedReduceScatter,
}
"""The classes of the schemes of `cssgd` by name."""
