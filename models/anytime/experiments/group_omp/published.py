"""The published figures: Tables 1 and 2 of the Group-OMP paper, means and standard errors over 100 runs."""

from __future__ import annotations

from anytime.experiments.experiment import Estimate

__all__ = ["TABLE_1", "TABLE_2"]

_GROUPED = {
    "Group Lasso (Oracle)": "0.545 0.010  0.449 0.011  0.693 0.005  0.755 0.002",
    "Group Lasso (Holdout)": "0.624 0.017  0.459 0.016  0.706 0.013  0.794 0.008",
    "Group-OMP (Oracle)": "0.730 0.017  0.998 0.002  0.999 0.001  0.998 0.002",
    "Group-OMP (Holdout)": "0.615 0.020  0.921 0.012  0.918 0.011  0.890 0.011",
}

_PRINTED = {
    "F1 (Var)": {
        "OLS": "0.333 0  0.222 0  0.545 0  0.750 0",
        "Lasso (Oracle)": "0.483 0.010  0.541 0.010  0.771 0.007  0.817 0.004",
        "Lasso (Holdout)": "0.389 0.012  0.528 0.015  0.758 0.015  0.810 0.005",
        "OMP (Oracle)": "0.531 0.019  0.787 0.009  0.532 0.004  0.781 0.005",
        "OMP (Holdout)": "0.422 0.014  0.728 0.013  0.477 0.006  0.741 0.006",
        **_GROUPED,
    },
    "F1 (Group)": {
        "OLS": "0.333 0  0.222 0  0.194 0  0.750 0",
        "Lasso (Oracle)": "0.458 0.012  0.346 0.008  0.494 0.011  0.751 0.001",
        "Lasso (Holdout)": "0.511 0.010  0.340 0.014  0.547 0.029  0.776 0.006",
        "OMP (Oracle)": "0.687 0.018  0.808 0.020  0.224 0.004  0.842 0.010",
        "OMP (Holdout)": "0.621 0.020  0.721 0.025  0.421 0.026  0.827 0.010",
        "Group Lasso (Oracle)": "0.545 0.010  0.449 0.011  0.317 0.006  0.755 0.002",
        "Group Lasso (Holdout)": "0.624 0.017  0.459 0.016  0.364 0.018  0.794 0.008",
        "Group-OMP (Oracle)": "0.730 0.017  0.998 0.002  0.998 0.001  0.998 0.002",
        "Group-OMP (Holdout)": "0.615 0.020  0.921 0.012  0.782 0.025  0.890 0.011",
    },
    "ME": {
        "OLS": "3.184 0.129  7.063 0.251  19.592 0.451  46.845 0.985",
        "Lasso (Oracle)": "1.203 0.078  1.099 0.067  9.228 0.285  30.343 0.796",
        "Lasso (Holdout)": "2.536 0.097  1.309 0.080  12.987 0.670  38.089 1.353",
        "OMP (Oracle)": "0.711 0.020  1.052 0.061  19.006 0.443  38.497 0.926",
        "OMP (Holdout)": "0.945 0.031  1.394 0.102  28.246 1.942  48.564 1.957",
        "Group Lasso (Oracle)": "0.457 0.021  0.867 0.052  11.538 0.370  31.053 0.831",
        "Group Lasso (Holdout)": "1.279 0.017  1.047 0.075  14.979 0.538  37.359 1.260",
        "Group-OMP (Oracle)": "0.601 0.0273  0.379 0.035  6.727 0.252  27.765 0.703",
        "Group-OMP (Holdout)": "0.965 0.050  0.605 0.089  12.553 1.469  35.989 1.127",
    },
}


def _estimates(line: str) -> tuple[Estimate, ...]:
    numbers = [float(word) for word in line.split()]
    return tuple(Estimate(mean, error) for mean, error in zip(numbers[::2], numbers[1::2], strict=True))


TABLE_1: dict[str, dict[str, tuple[Estimate, ...]]] = {
    measure: {row: _estimates(line) for row, line in rows.items()} for measure, rows in _PRINTED.items()
}
"""By measure and row, one estimate for each of the four experiments."""

TABLE_2: dict[str, tuple[Estimate, Estimate]] = {
    "OLS": (Estimate(29.30, 3.25), Estimate(13.0, 0.0)),
    "Lasso": (Estimate(17.82, 0.48), Estimate(12.82, 0.05)),
    "OMP": (Estimate(19.10, 0.78), Estimate(11.51, 0.20)),
    "Group Lasso": (Estimate(18.45, 0.59), Estimate(12.50, 0.13)),
    "Group-OMP": (Estimate(17.60, 0.51), Estimate(9.09, 0.31)),
}
"""Test prediction error and number of original variables, by method."""
