"""The tables and figures of adsp (Wang, Zhu 2024): strategies of a parameter server with delayed workers."""

from experiments.papers.adsp_2024 import (
    accuracy,
    convergence_time,
    heterogeneity,
    labels,
    robustness,
    staleness,
    threshold,
)
from experiments.tables.targets import register

for _name, _title, _target in (
    ("adsp-convergence-time", "Time to a fixed accuracy: adsp, BSP, ASP, SSP, DSSP", convergence_time),
    ("adsp-accuracy", "Accuracy after equally many samples: adsp, BSP, ASP, SSP, DSSP", accuracy),
    ("adsp-labels", "Which workers adsp takes for stragglers, and which were delayed", labels),
    ("adsp-robustness", "Time to a fixed accuracy with other rules that the abstract allows", robustness),
    ("adsp-staleness", "How late gradients are, and whose they are", staleness),
    ("adsp-threshold", "The threshold s of adsp, with random delays", threshold),
    ("adsp-heterogeneity", "From which delays on adsp pays", heterogeneity),
):
    register(_name, _title, _target.needs, _target.show)
