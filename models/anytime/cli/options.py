"""Options that several commands share, and checks of their values before the work starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import typer

from anytime.data.formats import NumberStyle, Table, open_table
from anytime.errors import GroupsError, TrainingError, listed
from anytime.evaluation import COVERAGE
from anytime.families import FAMILIES
from anytime.features.bases import BASES, MIN_LEVEL_ROWS
from anytime.selection import methods
from anytime.training.options import FOLDS, Options
from anytime.types import ColumnType, FamilyName, Method, Task

_BASES = [basis.example or name for name, basis in BASES.items()]


RARE = "Rare options"
"""Title of the options that few calls need, at the end of a command's help."""


def candidates(*values: str) -> Callable[[str], list[str]]:
    """Return what a shell completes a value to."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


Data = Annotated[Path, typer.Argument(help="Read rows from this table: Parquet, CSV or TSV (.gz), Arrow or svmlight.")]
DataOrMoments = Annotated[
    Path, typer.Argument(metavar="DATA", help="Read rows from this table, or moments from this file (*.moments).")
]
ModelFile = Annotated[Path, typer.Argument(help="Read this model file (*.safetensors).")]
Out = Annotated[Path, typer.Option(help="Write the model to this file (*.safetensors).")]
MaybeGroups = Annotated[
    Path | None,
    typer.Option(help="Read the feature groups from this file (JSON or YAML); by default each column costs 1."),
]
TestTable = Annotated[Path | None, typer.Option("--test", help="Evaluate every prefix on this table.")]
Coverage = Annotated[
    float | None,
    typer.Option(
        help=f"Set the coverage of intervals or sets, between 0 and 1; the default is {COVERAGE}.", rich_help_panel=RARE
    ),
]
Basis = Annotated[
    str | None,
    typer.Option(
        help=f"Turn each column of a fitting type into terms by this basis: {', '.join(_BASES)}. auto chooses linear, "
        "or hinges at 1, 3, 7 or 63 quantiles, perhaps with levels of its common values, by the cross-validated error; "
        "without folds it is linear. The default of `moments` and `basis` is linear.",
        autocompletion=candidates(*_BASES),
    ),
]
MinLevelRows = Annotated[
    str,
    typer.Option(
        help="Give a level, or a common value of hinges, a term of its own if this many sampled rows have it: 2 or "
        "more. auto chooses 10, 5 or 2 for levels by cross-validation.",
        autocompletion=candidates("auto"),
        rich_help_panel=RARE,
    ),
]
ClampAt = Annotated[
    str | None,
    typer.Option(
        "--clamp",
        help="Move values beyond the training quantiles Q and 1 - Q to these quantiles (0 <= Q < 0.5; 0 is the "
        "training range). outliers: move them to the quantile .01 or .99, only on a side with extreme values. off: "
        "move none. auto: curves and dates as by 0, but as by outliers on a side with extreme values; lines as "
        "cross-validation selects, usually off. The default is auto for the basis auto, otherwise 0 for curves and "
        "dates, off for lines.",
        autocompletion=candidates("auto", "off", "outliers", "0"),
        rich_help_panel=RARE,
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option("--text", help="Read this column as text, even if it holds digits; repeat for several."),
]
NumberColumns = Annotated[
    list[str] | None, typer.Option("--number", help="Read this column as numbers; repeat for several.")
]
Pairs = Annotated[
    str,
    typer.Option(
        help="Add products of this many pairs of columns as terms (0 to 256), or auto to cross-validate their number.",
        autocompletion=candidates("auto"),
    ),
]
Costs = Annotated[
    list[str] | None,
    typer.Option(help="Set the cost of this group, such as hog=2.5 or hog=5ms; repeat for several.", metavar="NAME=C"),
]
First = Annotated[list[str] | None, typer.Option(help="Place this group before all others; repeat for an order.")]
Without = Annotated[list[str] | None, typer.Option(help="Leave out this group; repeat for several.")]


def workers(jobs: int) -> int:
    """Check the value of --n-jobs for joblib."""
    if jobs == 0:
        raise TrainingError("--n-jobs is 0; expected a number of threads, or -1 for all cores")
    return jobs


Seed = Annotated[
    int, typer.Option(min=0, help="Seed the random numbers: folds, samples of rows, simulations.", rich_help_panel=RARE)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BackendName = Annotated[
    Literal["local", "dask"], typer.Option(help="Read rows in this process or on a Dask cluster.", rich_help_panel=RARE)
]
Scheduler = Annotated[
    str | None,
    typer.Option(help="Connect to this scheduler of the Dask cluster, such as tcp://host:8786.", rich_help_panel=RARE),
]
CostQuantile = Annotated[
    float | None, typer.Option(help="Use this quantile of the times as cost, between 0 and 1, such as 0.9.")
]
Distributions = Annotated[Path | None, typer.Option(help="Write all measured times to this file (*.json).")]
GROUPS_OUT = "Write the groups with the measured costs, in ms, to this file (JSON or YAML)."
"""Help of `--out` for measured costs, which one command requires and another does not."""


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How CSV files are read."""

    separator: Annotated[
        str | None,
        typer.Option(
            help="Read CSV files with this mark between cells; by default a comma, or as the header shows.",
            rich_help_panel=RARE,
        ),
    ] = None
    decimal: Annotated[str, typer.Option(help="Read this decimal mark in CSV files.", rich_help_panel=RARE)] = "."
    thousands: Annotated[
        str | None,
        typer.Option(
            help="Read this mark between groups of three digits in CSV files, such as 1,234.5.", rich_help_panel=RARE
        ),
    ] = None

    def open(self, path: Path) -> Table:
        separator = {"\\t": "\t", "tab": "\t"}.get(self.separator or "", self.separator)
        return open_table(path, separator=separator, style=NumberStyle(self.decimal, self.thousands))


@dataclass(frozen=True, kw_only=True)
class RowOptions(TableFormat):
    """Which rows of a table count, how much, and how they are read."""

    weights: Annotated[str | None, typer.Option(help="Weight the rows by this column.")] = None
    missing_target: Annotated[
        Literal["drop", "error"],
        typer.Option(
            "--missing-target",
            help="Leave out rows without a target, and say how many, or refuse them.",
            rich_help_panel=RARE,
        ),
    ] = "drop"
    n_jobs: Annotated[
        int,
        typer.Option(
            callback=workers, help="Read rows with this many threads; -1 uses all cores.", rich_help_panel=RARE
        ),
    ] = -1


@dataclass(frozen=True, kw_only=True)
class RefitOptions(RowOptions):
    """The table that a likelihood is refitted on."""

    data: Annotated[Path | None, typer.Option(help="Refit a likelihood on this table; least squares needs none.")] = (
        None
    )


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: a parameter that is a dataclass becomes an option for each of its fields.

    The options that say how rows are read are the last of them.
    """
    parameters: list[Parameter] = []
    bundles: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        bundle: Any = parameter.annotation
        if is_dataclass(bundle):
            hints = get_type_hints(bundle, include_extras=True)
            found = sorted(fields(bundle), key=lambda field: field in fields(RowOptions))
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
                for field in found
            ]
            bundles[parameter.name] = parameter.annotation, [field.name for field in found]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def spread_command(**values: Any) -> None:
        made = {key: make(**{name: values.pop(name) for name in names}) for key, (make, names) in bundles.items()}
        command(**values, **made)

    spread_command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return spread_command


def stated_types(text: list[str] | None, number: list[str] | None) -> dict[str, ColumnType]:
    """Return the types that --text and --number state; raise GroupsError for a column of both."""
    if both := {*(text or ())} & {*(number or ())}:
        raise GroupsError(f"--text and --number both name {listed(sorted(both))}; expected one type for each column")
    return {**dict.fromkeys(text or (), "text"), **dict.fromkeys(number or (), "number")}


def stated_coverage(coverage: float | None, calibrate: Path | None) -> float:
    """Return the coverage of --coverage or the default; raise TrainingError if there is no table to calibrate on."""
    if calibrate is None and coverage is not None:
        raise TrainingError(f"--coverage is {coverage} without a table to calibrate on; add --calibrate TABLE")
    return COVERAGE if coverage is None else coverage


def parsed_costs(costs: list[str] | None) -> dict[str, float | str]:
    """Return the costs that --cost states, by group; those with a unit as text. Raise GroupsError for another form."""
    found: dict[str, float | str] = {}
    for each in costs or ():
        name, mark, cost = each.rpartition("=")
        if not mark or not name or not cost:
            raise GroupsError(f"--cost is {each!r}; expected GROUP=COST, such as hog=2.5 or hog=5ms")
        if name in found:
            raise GroupsError(f"--cost names the group {name!r} twice; expected one cost for each group")
        found[name] = number_or_word(cost)
    return found


def number_or_word(text: str | None, number: Callable[[str], Any] = float) -> Any:
    """Return the number that a text states; another text, or None, unchanged: the library accepts some words."""
    try:
        return None if text is None else number(text)
    except ValueError:
        return text


def checked_fixed(clamp: str | None, level_rows: str) -> None:
    """Raise TrainingError for what only cross-validation of a fit selects."""
    for option, value, expected in (
        ("--clamp", clamp, "a quantile, outliers or off"),
        ("--min-level-rows", level_rows, "a whole number, 2 or more"),
    ):
        if value == "auto":
            raise TrainingError(f"{option} is 'auto', which only `train` and `compare` select; expected {expected}")


def checked_quantile(quantile: float | None) -> float | None:
    if quantile is not None and not 0 < quantile < 1:
        raise GroupsError(f"--cost-quantile is {quantile:g}; expected a number between 0 and 1, like 0.9")
    return quantile


_READ: dict[str, Callable[[Any], Any]] = {
    "alpha": number_or_word,
    "clamp": number_or_word,
    "min_level_rows": partial(number_or_word, number=int),
    "pairs": partial(number_or_word, number=int),
    **dict.fromkeys(("drop", "first", "without"), tuple),
}
"""What the values of some options become in the options of training; the others stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Plan(RowOptions):
    """What the columns of a table mean, and the folds of its rows: the options of `moments`."""

    fixed: ClassVar[Mapping[str, Any]] = {"alpha": 0.0}
    """Options of training that the command has no option for; moments do not depend on the penalty."""

    groups: MaybeGroups = None
    target: Annotated[
        list[str] | None,
        typer.Option(help="Predict this column; repeat for several responses. Required for a table, not for moments."),
    ] = None
    task: Annotated[
        Literal["auto", Task],
        typer.Option(
            help="Treat the target as numbers, classes or counts. auto: as --family requires; otherwise two values are "
            "binary, text is multiclass, and all others are regression."
        ),
    ] = Options.task
    folds: Annotated[
        int,
        typer.Option(
            help="Assign rows to this many folds: 2 or more, or 0 for no cross-validation (with a fixed --alpha)."
        ),
    ] = FOLDS
    query: Annotated[
        str | None, typer.Option(help="Keep rows with the same value of this column in one fold, and report NDCG.")
    ] = None
    drop: Annotated[list[str] | None, typer.Option(help="Leave out this feature; repeat for several.")] = None
    basis: Basis = None
    text: TextColumns = None
    number: NumberColumns = None
    clamp: ClampAt = None
    min_level_rows: MinLevelRows = str(MIN_LEVEL_ROWS)
    seed: Seed = Options.seed

    @cached_property
    def training(self) -> Options:
        """Return all options of training, which are checked here."""
        if "alpha" in self.fixed:  # nothing is selected by cross-validation
            checked_fixed(self.clamp, self.min_level_rows)
        stated: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(Options)}
        stated |= {**self.fixed, "types": stated_types(self.text, self.number)}
        # None is the default of all but the basis.
        read = {k: _READ[k](v) if k in _READ else v for k, v in stated.items() if v is not None or k == "basis"}
        return Options(**read)


@dataclass(frozen=True, kw_only=True)
class FitPlan(Plan):
    """The plan of a fit: cross-validation selects the penalty, the basis, the clamp and the levels by default."""

    fixed: ClassVar[Mapping[str, Any]] = {}

    basis: Basis = Options.basis
    min_level_rows: MinLevelRows = str(Options.min_level_rows)
    alpha: Annotated[
        str,
        typer.Option(
            help="Set the penalty: a number >= 0, or cv to choose it by cross-validation.",
            autocompletion=candidates("cv"),
        ),
    ] = str(Options.alpha)


@dataclass(frozen=True, kw_only=True)
class TrainPlan(FitPlan):
    """The plan of `train`, which states everything."""

    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train for predictions of this many rows, which share the fixed costs; the default is `rows` of the "
            "groups file, or 1.",
            rich_help_panel=RARE,
        ),
    ] = Options.rows
    family: Annotated[
        FamilyName | None,
        typer.Option(
            help=f"Fit this likelihood: {', '.join(FAMILIES)}. The default is gaussian (least squares) for numbers, "
            "poisson for --task count, and for classes their likelihood, or gaussian if that takes much longer.",
            autocompletion=candidates(*FAMILIES),
        ),
    ] = Options.family
    method: Annotated[
        Method,
        typer.Option(
            help=f"Select the next group by this method: {', '.join(methods())} (the order of the Group Lasso path).",
            autocompletion=candidates(*methods()),
        ),
    ] = str(Options.method)
    cost_blind: Annotated[
        bool, typer.Option("--cost-blind", help="Ignore costs in selection.", rich_help_panel=RARE)
    ] = Options.cost_blind
    doubling: Annotated[
        bool,
        typer.Option(
            "--doubling", help="Limit the cost of each step to the cost of all steps before it.", rich_help_panel=RARE
        ),
    ] = Options.doubling
    class_weight: Annotated[
        Literal["balanced"] | None,
        typer.Option(help="Weight the rows (balanced) so that all classes count equally in training."),
    ] = None
    first: First = None
    without: Without = None
    one_se: Annotated[
        bool,
        typer.Option(
            "--one-se", help="Select the largest penalty within one standard error of the best.", rich_help_panel=RARE
        ),
    ] = Options.one_se
    nested: Annotated[
        bool,
        typer.Option(
            "--nested",
            help="Learn the order again in each fold, to measure errors without selection bias.",
            rich_help_panel=RARE,
        ),
    ] = Options.nested
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Stop when the projection of the residual on every remaining group is at most this long, in "
            "deviations of the target: a number >= 0.",
            rich_help_panel=RARE,
        ),
    ] = Options.epsilon
    pairs: Pairs = str(Options.pairs)
