"""The tables and figures of adsp (Wang, Zhu 2024), a strategy of a parameter server with delayed workers."""

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
    ("adsp-accuracy", "Accuracy after the same number of samples: adsp, BSP, ASP, SSP, DSSP", accuracy),
    ("adsp-labels", "Workers that adsp labels as stragglers, and workers that were delayed", labels),
    ("adsp-robustness", "Time to a fixed accuracy with other rules that the abstract allows", robustness),
    ("adsp-staleness", "Staleness of gradients, and the workers that computed them", staleness),
    ("adsp-threshold", "The threshold s of adsp, with random delays", threshold),
    ("adsp-heterogeneity", "The delays from which on adsp saves time", heterogeneity),
):
    register(_name, _title, _target.needs, _target.show)
