"""The tables and figures of CSSGD (Li, Xie, Mao, Xu, Zhu, Zhang 2021), and of this project's grouped scheme."""

from functools import partial

from experiments.papers.cssgd_2021 import (
    accuracy,
    best_redundancy,
    curve,
    encoding,
    load,
    over_nodes,
    precision,
    redundancy,
)
from experiments.papers.cssgd_2021.tasks import CNN, DNN
from experiments.tables.targets import register

register("cssgd-table2", "Accuracy of a single machine: DNN and CNN", accuracy.single_needs, accuracy.show_single)
for of_dnn, of_cnn, what, needs, show in (
    (4, 5, "test accuracy over time; CSSGD, SSGD, ASGD", accuracy.curve_needs, accuracy.show_curves),
    (6, 7, "test accuracy about the benchmark", accuracy.curve_needs, accuracy.show_benchmark),
    (8, 10, "time over nodes; SSGD, CSSGD r = 2, 3", over_nodes.time_needs, over_nodes.show_time),
    (9, 11, "traffic over nodes; SSGD, CSSGD r = 2, 3", over_nodes.traffic_needs, over_nodes.show_traffic),
    (12, 13, "time of a step over the redundancy r, and the model", redundancy.needs, redundancy.show),
    (14, 15, "time over nodes; CSSGD with the best r, SSGD, ASGD", best_redundancy.needs, best_redundancy.show),
):
    for figure, task in ((of_dnn, DNN), (of_cnn, CNN)):
        register(f"cssgd-fig{figure}", f"{task.name}: {what}", partial(needs, task), partial(show, task))
register(
    "cssgd-scaling",
    "Speed of a node over nodes; CSSGD with the best r, ASGD",
    best_redundancy.scaling_needs,
    best_redundancy.show_scaling,
)
register("cssgd-curve", "Saving of the best r over Tcomm / Tcalc, and the break-even", curve.needs, curve.show)
register("cssgd-precision", "The precision of training with coding", precision.needs, precision.show)
register(
    "cssgd-quantising",
    "Accuracy lost with quantised gradients and random parts",
    precision.lossy_needs,
    precision.show_lossy,
)
register("cssgd-encoding", "The share of encoding in computing time, measured", encoding.needs, encoding.show)
register("cssgd-load", "Counted packets, compared with formulas (6) to (30) and 1/n", lambda conditions: {}, load.show)
