"""The tables of the comparison of all-reduces: their times, and their traffic over cables that join groups of ranks."""

from tabulate import tabulate

from experiments.swing.contenders import BINE, HALVING, NEAR_FIRST, RING, TREE
from experiments.swing.measure import SIZES, AllreduceRun, size_text
from experiments.swing.networks import SETTINGS
from experiments.swing.verdict import COMPARISONS, TRAFFIC_BYTES, Results, change, gain


def times(results: Results) -> str:
    """Return the table of Swing's speed relative to the fastest compared all-reduce, whose name is stated.

    The table has a row for each network and each comparison.
    """
    rows = []
    for title in SETTINGS:
        for comparison in COMPARISONS:
            found = [gain(results, comparison, title, nbytes) for nbytes in SIZES]
            if any(found):
                cells = ["" if each is None else f"{each.times:.2f} {each.fastest}" for each in found]
                rows.append([title, comparison.title, *cells])
    return pipe(rows, ["network", "compared", *map(size_text, SIZES)])


def traffic(results: Results) -> str:
    """Return the table of bytes over all global links, divided by the array's bytes.

    The bytes over the busiest global link are in brackets.
    """
    rows, names = [], (RING, TREE, HALVING, NEAR_FIRST, BINE)
    for title, setting in SETTINGS.items():
        found = [results.get(AllreduceRun(title, name, TRAFFIC_BYTES)) for name in names]
        if setting.shape is None and any(found):
            share = change(results, title, NEAR_FIRST)
            cells = ["" if one is None else cell(one) for one in found]
            rows.append([title, setting.ranks, *cells, "" if share is None else f"{share:+.0%}"])
    return pipe(rows, ["network", "ranks", *names[:-1], "swing, bine", f"against {NEAR_FIRST}"])


def cell(result) -> str:
    return f"{result.over_global / TRAFFIC_BYTES:.1f} ({result.busiest / TRAFFIC_BYTES:.2f})"


def pipe(rows, headers) -> str:
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)
