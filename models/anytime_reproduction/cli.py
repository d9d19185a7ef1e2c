"""`anytime reproduce`: the experiments of the papers, and a report that compares them with the published results."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.console import print_results, progress, remark
from anytime.cli.options import workers
from anytime.errors import AnytimeError, refuse, suggestion
from anytime_reproduction.experiment import Experiment, Setting
from anytime_reproduction.group_omp.boston import BOSTON
from anytime_reproduction.group_omp.table_1 import GROUP_OMP
from anytime_reproduction.report import VERDICTS, check_folder, write_report
from anytime_reproduction.running import results_of
from anytime_reproduction.sets import check_sets
from anytime_reproduction.uai.bounds import BOUNDS, CERTIFICATES
from anytime_reproduction.uai.doubling import DOUBLING
from anytime_reproduction.uai.timeliness import CURVES, TABLE_1, TABLE_2
from anytime_reproduction.uai.training_time import TRAINING_TIME

EXPERIMENTS = (TABLE_1, TABLE_2, CURVES, TRAINING_TIME, DOUBLING, BOUNDS, CERTIFICATES, GROUP_OMP, BOSTON)
"""All experiments, in the order of the report."""

DATA = Path("../shared/data")  # default folder of the real data sets


def reproduce(
    name: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run these experiments; the default is all.",
            autocompletion=lambda: [each.name for each in EXPERIMENTS],
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments, as without a name.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer repetitions: about two minutes.")] = False,
    out: Annotated[Path, typer.Option(help="Write the report to this folder; its results are reused.")] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None, typer.Option(help=f"Read the real data sets from this folder; the default is {DATA} if it exists.")
    ] = None,
    yahoo: Annotated[Path | None, typer.Option(help="Read the owners' Yahoo! LTR files from this folder.")] = None,
    yahoo_costs: Annotated[
        Path | None, typer.Option(help="Read the costs of the Yahoo! features from this file.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again, and replace existing results.")] = False,
    n_jobs: Annotated[int, typer.Option(callback=workers, help="Run this many processes; -1 uses all cores.")] = -1,
    seed: Annotated[int, typer.Option(min=0, help="Seed all random numbers.")] = 0,
) -> None:
    """Reproduce the papers' experiments and write a report: each table and figure, published and ours.

    An interrupted run resumes where it stopped.

    Example: anytime reproduce --quick --out reproduction
    """
    refuse(
        {
            **{
                f"the experiments need {module}; pip install 'anytime-linear[train]'": find_spec(module) is None
                for module in ("pyarrow", "sklearn")  # in addition to the library's own requirements
            },
            "--all was given together with the name of an experiment; give one of them": bool(name) and everything,
            "one of --yahoo and --yahoo-costs was given; give both or neither": bool(yahoo) != bool(yahoo_costs),
            f"--data {str(data)!r} is not a folder; remove it to run on scikit-learn's data sets": (
                data is not None and not data.is_dir()
            ),
        },
        AnytimeError,
    )
    folder = data if data is not None else DATA if DATA.is_dir() else None
    setting = Setting(folder, None if yahoo is None or yahoo_costs is None else (yahoo, yahoo_costs), quick, seed)
    experiments, ran_on = chosen(name or ()), described(setting)
    check_sets({required for experiment in experiments for required in experiment.sets}, setting)
    check_folder(out)
    for line in ran_on:
        remark(line)
    count = sum(len(experiment.runs(setting)) for experiment in experiments)
    with progress("experiments", count, "runs") as report_progress:
        found = results_of(experiments, setting, out / "runs", n_jobs=n_jobs, fresh=fresh, progress=report_progress)
    sections = [(experiment, experiment.reported(setting, found[experiment.name])) for experiment in experiments]
    report = write_report(sections, ran_on, out)
    for experiment, section in sections:
        print_results(f"{experiment.name}: {experiment.title}")
        for finding in section.findings:
            print_results(f"  {finding.verdict.replace('differs', 'DIFFERS'):<9} {finding.text}")
    print_results(VERDICTS, f"wrote {report}")


def chosen(names: Iterable[str]) -> list[Experiment]:
    """Return experiments by name, all if no name is given; raise AnytimeError for an unknown name."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    requested = list(dict.fromkeys(names))
    if unknown := [name for name in requested if name not in known]:
        raise AnytimeError(f"there is no experiment {unknown[0]!r}; {suggestion(unknown[0], tuple(known))}")
    return [known[name] for name in requested] or list(EXPERIMENTS)


def described(setting: Setting) -> list[str]:
    """Return lines that describe the data and the seed of a report."""
    where = (
        "The real data sets are not available: scikit-learn's bundled sets and a synthetic one replace them, so the "
        "published numbers are not comparable."
        if setting.data is None
        else f"Real data sets from {setting.data}."
    )
    owners = "" if setting.yahoo is None else f" The owners' Yahoo! files from {setting.yahoo[0]}."
    return [where + owners, f"Seed {setting.seed}." + " A quick look: fewer runs, sizes and sets." * setting.quick]
