"""Options that several commands share, and checks of their values before the work starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime.errors import GroupsError, TrainingError
from anytime.features.expansion import parsed_basis
from anytime.features.learning import Clamp, checked_clamp
from anytime.training.options import MAX_PAIRS

Data = Annotated[Path, typer.Argument(help="Table: Parquet, CSV (.gz), Arrow, svmlight or .npz.")]
ModelFile = Annotated[Path, typer.Argument(help="Model file.")]
Out = Annotated[Path, typer.Option(help="Model file to write, named *.safetensors.")]
GroupsFile = Annotated[Path, typer.Option(help="Groups file, JSON or YAML.")]
TargetColumns = Annotated[list[str], typer.Option(help="Column to predict; repeat it for several responses.")]
MaybeGroups = Annotated[Path | None, typer.Option(help="Groups file, JSON or YAML; moments contain their own.")]
MaybeTarget = Annotated[
    list[str] | None,
    typer.Option(help="Column to predict; repeat it for several responses. Moments contain their own."),
]
Alpha = Annotated[str, typer.Option(help="Penalty, 0 or more, or 'cv' to choose it by cross-validation.")]
Folds = Annotated[
    int, typer.Option(help="Folds of the cross-validation; 0 measures no error and requires a fixed --alpha.")
]
Query = Annotated[
    str | None, typer.Option(help="Column with the query of a row: its rows share a fold, and NDCG is reported.")
]
Weights = Annotated[str | None, typer.Option(help="Column with the weights of the rows.")]
Basis = Annotated[
    str | None,
    typer.Option(
        help="Basis of all columns that it fits: linear (default), hinge[:K], auto (selects K), poly:P or categories."
    ),
]
ClampAt = Annotated[
    str | None,
    typer.Option(
        "--clamp",
        help="Move values outside the quantiles Q and 1 - Q of training to the nearest; off; 0 by default for hinge.",
    ),
]
Pairs = Annotated[
    str | None,
    typer.Option(help="Pairs of columns whose products become terms: a number, or 'auto' to cross-validate it."),
]
Drop = Annotated[list[str] | None, typer.Option(help="Feature to leave out; may be repeated.")]
First = Annotated[list[str] | None, typer.Option(help="Group to place before all others; repeat it for an order.")]
Without = Annotated[list[str] | None, typer.Option(help="Group to leave out; may be repeated.")]
DropMissing = Annotated[bool, typer.Option("--drop-missing-target", help="Leave out rows without a target.")]
Jobs = Annotated[int | None, typer.Option(help="Threads that read rows; all cores by default.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the folds and of the sample that bases are learned from.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BackendName = Annotated[
    Literal["local", "dask"], typer.Option(help="Where rows are read and summed: here, or on a Dask cluster.")
]
Scheduler = Annotated[str | None, typer.Option(help="Address of the cluster's scheduler, as tcp://host:8786.")]
CostQuantile = Annotated[float | None, typer.Option(help="Quantile to use as a cost, 0.9 for example.")]
Distributions = Annotated[Path | None, typer.Option(help="File to write all measurements to (.json).")]


def parsed_alpha(alpha: str) -> float | Literal["cv"]:
    if alpha == "cv":
        return "cv"
    try:
        return float(alpha)
    except ValueError:
        raise TrainingError(f"--alpha is {alpha!r}; expected a number, 0 or more, or 'cv'") from None


def parsed_clamp(clamp: str | None) -> Clamp:
    if clamp is None:
        return None
    try:
        return checked_clamp("off" if clamp == "off" else float(clamp))
    except ValueError:  # TrainingError is one
        raise TrainingError(f"--clamp is {clamp!r}; expected a quantile Q from 0 to below 0.5, or off") from None


def parsed_pairs(pairs: str | None) -> int | Literal["auto"] | None:
    if pairs is None or pairs == "auto":
        return pairs  # type: ignore[return-value]
    try:
        return int(pairs)
    except ValueError:
        raise TrainingError(f"--pairs is {pairs!r}; expected a number from 1 to {MAX_PAIRS}, or 'auto'") from None


def checked_basis(basis: str | None) -> str | None:
    if basis is not None:
        parsed_basis(basis)
    return basis


def checked_folds(folds: int, *, needed: bool) -> int:
    if folds < 0 or folds == 1:
        raise TrainingError(f"--folds is {folds}; expected 2 or more, or 0 for none")
    if folds == 0 and needed:
        raise TrainingError("--folds is 0; --alpha cv and --nested need 2 or more")
    return folds


def checked_quantile(quantile: float | None) -> float | None:
    if quantile is not None and not 0 < quantile < 1:
        raise GroupsError(f"--cost-quantile is {quantile:g}; expected a number between 0 and 1, like 0.9")
    return quantile


def workers(jobs: int | None) -> int:
    """Return the value of --n-jobs for joblib; the default is all cores."""
    if jobs == 0:
        raise TrainingError("--n-jobs is 0; expected a number of threads, or -1 for all cores")
    return -1 if jobs is None else jobs
