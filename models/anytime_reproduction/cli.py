"""`anytime reproduce`: the experiments of the papers, and a report that compares them with the published results."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.options import workers

DATA = Path("../shared/data")
"""Default folder of the real data sets."""

REQUIRED = ("matplotlib", "pyarrow", "sklearn")
"""Packages that the experiments need in addition to the library's own requirements."""


def reproduce(
    name: Annotated[
        list[str] | None, typer.Argument(help="Experiments to run; all by default.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Run all experiments, which is the default without a name.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer repetitions, within two minutes.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder of the report; existing results there are reused.")] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None,
        typer.Option("--data", help=f"Folder of the real data sets; {DATA} if it exists.", show_default=False),
    ] = None,
    yahoo: Annotated[
        Path | None, typer.Option("--yahoo", help="Folder of the owners' Yahoo! LTR files.", show_default=False)
    ] = None,
    yahoo_costs: Annotated[
        Path | None, typer.Option("--yahoo-costs", help="Cost file of its features.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore existing results and run everything.")] = False,
    n_jobs: Annotated[int | None, typer.Option(help="Processes; all cores by default.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
) -> None:
    """Reproduce the papers' experiments and write a report: each table and figure, published and ours.

    An interrupted run resumes where it stopped.
    """
    from anytime.cli.console import print_results, progress, remark  # noqa: PLC0415  (keeps `anytime --help` quick)
    from anytime.errors import AnytimeError  # noqa: PLC0415
    from anytime_reproduction import check_folder, check_sets, chosen, described, results_of, write_report  # noqa: PLC0415
    from anytime_reproduction.experiment import Setting  # noqa: PLC0415

    for module in REQUIRED:
        if find_spec(module) is None:
            raise AnytimeError(f"the experiments need {module}; pip install 'anytime-linear[train,plot]'")
    if name and everything:
        raise AnytimeError("--all was given together with the name of an experiment; give one of them")
    if (yahoo is None) != (yahoo_costs is None):
        raise AnytimeError("one of --yahoo and --yahoo-costs was given; give both or neither")
    if data is not None and not data.is_dir():
        raise AnytimeError(f"--data {str(data)!r} is not a folder; remove it to run on scikit-learn's data sets")
    folder = data if data is not None else DATA if DATA.is_dir() else None
    setting = Setting(folder, None if yahoo is None or yahoo_costs is None else (yahoo, yahoo_costs), quick, seed)
    experiments, jobs = chosen(name or ()), workers(n_jobs)
    check_sets({required for experiment in experiments for required in experiment.sets}, setting)
    check_folder(out)
    for line in described(setting):
        remark(line)
    with progress(
        "experiments", sum(len(experiment.runs(setting)) for experiment in experiments), "runs"
    ) as report_progress:
        found = results_of(experiments, setting, out / "runs", n_jobs=jobs, fresh=fresh, progress=report_progress)
    sections = [(experiment, experiment.reported(setting, found[experiment.name])) for experiment in experiments]
    report = write_report(sections, described(setting), out)
    for experiment, section in sections:
        print_results(f"{experiment.name}: {experiment.title}")
        for finding in section.findings:
            sign = {True: "agrees ", False: "DIFFERS", None: "noted  "}[finding.agrees]
            print_results(f"  {sign} {finding.text}")
    print_results(f"wrote {report}")
