"""`anytime report`: a page about a model, for those who decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli.console import remark, working
from anytime.cli.options import Coverage, ModelFile, TableFormat, TestTable, spread, stated_coverage
from anytime.evaluation.report import report as written
from anytime.groups import write_text
from anytime.loaded import load


@spread
def report(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="Write the page to this file (*.html).")],
    test: TestTable = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Calibrate intervals or sets on this table of other rows, for the page only.")
    ] = None,
    coverage: Coverage = None,
    *,
    tables: TableFormat,
) -> None:
    """Write a report of a model as one page: quality by cost, groups, shapes, reliability, warnings and their remedies.

    The page is one file without scripts, and loads nothing from a network.

    Example: anytime report model.safetensors --test test.csv --out report.html
    """
    check_writable(out, (".html", ".htm"))
    share = stated_coverage(coverage, calibrate)
    loaded = load(model)
    opened = [None if path is None else tables.open(path) for path in (test, calibrate)]
    with working(f"measuring {loaded.name}"):
        text = written(loaded, *opened, coverage=share)
    write_text(text, out)
    remark(f"wrote {out} ({len(text.encode()) / 1024:.0f} KiB)")
