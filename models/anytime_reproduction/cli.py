"""`anytime reproduce`: the experiments of the papers, and a report on where ours agree."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.options import workers

__all__ = [
    "reproduce",
]

DATA = Path("../shared/data")
"""Where the real data sets are looked for unless told."""

NEEDED = ("matplotlib", "pyarrow", "sklearn")
"""What the experiments need beside the library's own requirements."""

Folder = Annotated[
    Path | None,
    typer.Option("--data", help=f"Folder of the real data sets; {DATA} where it is there.", show_default=False),
]


def reproduce(
    name: Annotated[
        list[str] | None, typer.Argument(help="Experiments to run; all by default.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All experiments: what is done without a name, too.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs of each, within two minutes.")] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the report; results found there are used again.")
    ] = Path("reproduction"),
    data: Folder = None,
    yahoo: Annotated[
        Path | None, typer.Option("--yahoo", help="Folder of the owners' Yahoo! LTR files.", show_default=False)
    ] = None,
    yahoo_costs: Annotated[
        Path | None, typer.Option("--yahoo-costs", help="Cost file of its features.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything anew.")] = False,
    n_jobs: Annotated[int | None, typer.Option(help="Processes; all cores by default.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
) -> None:
    """Run the papers' experiments again and write a report: each table and figure, published and ours.

    An interrupted run is taken up where it stopped.
    """
    from anytime.cli.console import progress, remark, results  # noqa: PLC0415  (keeps `anytime --help` quick)
    from anytime.errors import AnytimeError  # noqa: PLC0415
    from anytime_reproduction import check_folder, check_sets, chosen, described, results_of, write_report  # noqa: PLC0415
    from anytime_reproduction.experiment import Setting  # noqa: PLC0415

    for module in NEEDED:
        if find_spec(module) is None:
            raise AnytimeError(f"the experiments need {module}; pip install 'anytime-linear[train,plot]'")
    if name and everything:
        raise AnytimeError("--all and the name of an experiment were given; give one of them")
    if (yahoo is None) != (yahoo_costs is None):
        raise AnytimeError("--yahoo and --yahoo-costs go together; give both or neither")
    if data is not None and not data.is_dir():
        raise AnytimeError(f"--data {str(data)!r} is not a folder; leave it out to run on what scikit-learn brings")
    folder = data if data is not None else DATA if DATA.is_dir() else None
    setting = Setting(folder, None if yahoo is None or yahoo_costs is None else (yahoo, yahoo_costs), quick, seed)
    experiments, jobs = chosen(name or ()), workers(n_jobs)
    check_sets({needed for experiment in experiments for needed in experiment.sets}, setting)
    check_folder(out)
    for line in described(setting):
        remark(line)
    with progress("experiments", sum(len(experiment.runs(setting)) for experiment in experiments), "runs") as told:
        found = results_of(experiments, setting, out / "runs", n_jobs=jobs, fresh=fresh, told=told)
    sections = [(experiment, experiment.reported(setting, found[experiment.name])) for experiment in experiments]
    report = write_report(sections, described(setting), out)
    console = results()
    for experiment, section in sections:
        console.print(f"{experiment.name}: {experiment.title}", markup=False)
        for finding in section.findings:
            sign = {True: "agrees ", False: "DIFFERS", None: "noted  "}[finding.agrees]
            console.print(f"  {sign} {finding.text}", markup=False)
    console.print(f"wrote {report}", markup=False)
