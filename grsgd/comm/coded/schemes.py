"""The schemes (rules by which ranks exchange blocks of gradients) of the algorithm `cssgd`, for code that chooses a
scheme by its name."""

from grsgd.comm.coded.grouped import GroupedDirect, GroupedReduceScatter
from grsgd.comm.coded.scheme import Scheme
from grsgd.comm.coded.subsets import Coded, Uncoded

SCHEMES: dict[str, type[Scheme]] = {
    "coded": Coded,
    "uncoded": Uncoded,
    "grouped-direct": GroupedDirect,
    "grouped-rs": GroupedReduceScatter,
}
"""Class of each scheme of the algorithm `cssgd`, by the scheme's name in the run file."""
