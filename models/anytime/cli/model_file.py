"""The commands about one model file: `anytime show`, `plot`, `report`, `export` and `certify`.

Each imports its own part of the library when it runs, so that `show` starts quickly.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli.console import Done, as_json, print_results, progress, remark, working
from anytime.cli.options import (
    AsJson,
    Coverage,
    ModelFile,
    TableFormat,
    TestTable,
    candidates,
    spread,
    stated_coverage,
    workers,
)
from anytime.cli.summary import budget_lines, certificate_line, shapes_table, steps_table, summary
from anytime.errors import TrainingError, refuse
from anytime.evaluation import SHAPES_DRAWN
from anytime.evaluation.certificate import NODES
from anytime.groups import write_text
from anytime.loaded import load
from anytime.model.export import EXPORTS
from anytime.tabulated import Series, Tabulated

Prefix = Annotated[int | None, typer.Option(help="Use the columns of this many steps; all by default.")]


def show(
    model: ModelFile,
    shapes: Annotated[bool, typer.Option("--shapes", help="Show each column's contribution to the score.")] = False,
    prefix: Prefix = None,
    budget: Annotated[
        list[float] | None,
        typer.Option(help="Show the groups to compute within this budget, and the next; repeat for several."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print the steps of a model with the groups, cost and r2 of each, or the shapes of its columns.

    Example: anytime show model.safetensors
    """
    _check_shapes(shapes, prefix=prefix)
    refuse({"--budget is about steps, and --shapes shows columns; add --prefix instead": shapes and bool(budget)})
    loaded = load(model)
    if shapes:
        from anytime.evaluation.shapes import column_shapes  # noqa: PLC0415
        from anytime.inference.sharing import cancelling, sharing_table  # noqa: PLC0415

        columns, groups = column_shapes(loaded, prefix), loaded.sharing(prefix)
        if json:
            shown = {
                "model": loaded.name,
                "version": loaded.version,
                "prefix": loaded.steps if prefix is None else prefix,
                "scores": loaded.score_names,
                "columns": list(map(asdict, columns)),
                "groups": list(map(asdict, groups)),
            }
            print_results(as_json(shown))
        else:
            parts = (sharing_table(groups), "") if groups else ()
            print_results(*parts, shapes_table(columns), *filter(None, [cancelling(groups)]))
    elif json:
        values = {
            "cost_unit": loaded.groups.cost_unit,
            "features": len(loaded.groups.features),
            "moments": loaded.moments is not None,
        }
        within = [(each, loaded.affordable(each)) for each in budget or ()]
        budgets = [
            {
                "budget": each,
                "prefix": prefix,
                "groups": loaded.computed[prefix],
                "cost": float(loaded.costs[prefix]),
                "r2": loaded.expected(prefix).r2,
                "next": [name for step in loaded.manifest.steps[prefix : prefix + 1] for name in step.adds],
            }
            for each, prefix in within
        ]
        values |= {"budgets": budgets} if budget else {}
        print_results(as_json(loaded.manifest.model_dump(mode="json") | values))
    elif budget:
        print_results(*(line for each in budget for line in budget_lines(loaded, each)))
    else:
        print_results(steps_table(loaded), summary(loaded))


def plot(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="Draw to this file (png, svg or pdf).")],
    shapes: Annotated[bool, typer.Option("--shapes", help="Draw each column's contribution to the score.")] = False,
    prefix: Prefix = None,
    top: Annotated[
        int | None, typer.Option(min=1, help=f"Draw this many columns, the strongest; {SHAPES_DRAWN} by default.")
    ] = None,
) -> None:
    """Draw the explained variance of each prefix of a model against its cost, or the shapes of its columns.

    Example: anytime plot model.safetensors --out model.png
    """
    from anytime.evaluation.plots import FORMATS, plot_model, plot_shapes  # noqa: PLC0415

    _check_shapes(shapes, prefix=prefix, top=top)
    check_writable(out, FORMATS)
    loaded = load(model)
    if shapes:
        plot_shapes(loaded, out, prefix=prefix, top=SHAPES_DRAWN if top is None else top)
    else:
        plot_model(loaded, out)
    remark(f"wrote {out}")


def _check_shapes(shapes: bool, **options: int | None) -> None:
    """Raise TrainingError if an option about shapes is given without `--shapes`."""
    for name, value in options.items():
        if value is not None and not shapes:
            raise TrainingError(f"--{name} is {value} without --shapes; add --shapes, or omit --{name}")


@spread
def report(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="Write the page to this file (*.html).")],
    test: TestTable = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Calibrate intervals or sets on this table of other rows, for the page only.")
    ] = None,
    coverage: Coverage = None,
    weights: Annotated[str | None, typer.Option(help="Weight the rows of --test by this column.")] = None,
    *,
    tables: TableFormat,
) -> None:
    """Write a report of a model as one page: quality by cost, groups, shapes, reliability, warnings and their remedies.

    The page is one file without scripts, and loads nothing from a network.

    Example: anytime report model.safetensors --test test.csv --out report.html
    """
    from anytime.evaluation.report import report as written  # noqa: PLC0415

    check_writable(out, (".html", ".htm"))
    share = stated_coverage(coverage, calibrate)
    if test is None and weights is not None:
        raise TrainingError(f"--weights is {weights!r} without rows to weight; add --test TABLE")
    loaded = load(model)
    opened = [None if path is None else tables.open(path) for path in (test, calibrate)]
    with working(f"measuring {loaded.name}"):
        text = written(loaded, *opened, coverage=share, weights=weights)
    write_text(text, out)
    remark(f"wrote {out} ({len(text.encode()) / 1024:.0f} KiB)")


def export(
    model: ModelFile,
    to: Annotated[
        str,
        typer.Option(
            help="Write json, or c: a C11 header that predicts one row at a time.", autocompletion=candidates(*EXPORTS)
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write to this file (*.json or *.h); the default is standard output.")
    ] = None,
) -> None:
    """Write the prefixes of a model as JSON or C, for programs and devices without this library.

    Example: anytime export model.safetensors --to c --out model.h
    """
    if to not in EXPORTS:
        raise TrainingError(f"--to is {to!r}; expected one of {', '.join(EXPORTS)}")
    check_writable(out, (EXPORTS[to].suffix,))
    text = EXPORTS[to].text(load(model))
    if out is None:
        print(text, end="")
    else:
        write_text(text, out)
        remark(f"wrote {out}")


def certify(
    model: ModelFile,
    out: Annotated[Path | None, typer.Option(help="Write the certified model to this file (*.safetensors).")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Overwrite the model file, instead of --out.")] = False,
    seconds: Annotated[
        float, typer.Option(help="Search for at most this long, in seconds, for all prefixes together.")
    ] = 60.0,
    nodes: Annotated[int, typer.Option(help="Visit at most this many search nodes per prefix.")] = NODES,
    n_jobs: Annotated[
        int, typer.Option(callback=workers, help="Search with this many processes; -1 uses all cores.")
    ] = 1,
    json: AsJson = False,
) -> None:
    """Compare the explained variance of each prefix with the best set of groups of the same cost, in training.

    Without --out and --in-place the results are only printed. With more time and nodes the bounds are tighter.

    Example: anytime certify model.safetensors --seconds 10 --out certified.safetensors
    """
    from anytime.evaluation.certificate.certify import certify as certify_model  # noqa: PLC0415

    if out is not None and in_place:
        raise TrainingError("both --out and --in-place are given; give --out to write a new file, or --in-place")
    if out is not None and out.exists() and model.exists() and out.samefile(model):
        raise TrainingError(f"--out is {str(out)!r}, the model itself; name another file, or give --in-place instead")
    out = model if in_place else out
    check_writable(out, (".safetensors",))
    loaded = load(model)
    with progress(f"certifying {loaded.name}", loaded.steps + 1, "prefixes") as advance:
        certified = certify_model(loaded, nodes=nodes, seconds=seconds, n_jobs=n_jobs, progress=advance)
    done, result = Done(), "not written: add --out M.safetensors, or --in-place"
    if out is not None:
        with done.then(out):
            certified, result = certified.save(out), f"wrote {out}"
    certificate = certified.manifest.certificate
    if json and certificate is not None:
        prefixes = Tabulated.of(
            Series("prefix", range(certified.steps + 1)),
            Series("cost", certified.costs),
            Series(
                "explained_variance", [certified.expected(k).explained_variance for k in range(certified.steps + 1)]
            ),
            Series("bound", certificate.bounds),
            Series("share", certified.certified_shares),
            Series("exact", certificate.exact),
        ).records()
        limits = {"nodes": certificate.nodes, "seconds": certificate.seconds}
        done.print(as_json({"version": certified.version, **limits, "prefixes": prefixes}))
    else:
        done.print(steps_table(certified), certificate_line(certified), *([] if done.failed else [result]))
