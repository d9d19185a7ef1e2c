"""All comparisons with peers, as one report: `python tests/benchmarks/peers/run.py --data DIR`.

Peers run in their own environments under `.venv-peers`, created on first use. Each part is written as soon as it is
measured; `--only` measures some parts again, and the report retains the others.
"""

from __future__ import annotations

import datetime
import sys
import time
import warnings
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from anytime.errors import AnytimeWarning
from benchmarks.harness import flag, script_options
from benchmarks.peers.adaptive import adaptive
from benchmarks.peers.defaults import defaults
from benchmarks.peers.published import prices, published
from benchmarks.peers.quality import quality
from benchmarks.peers.report import lines, machine, read_sections, write
from benchmarks.peers.serving import serving
from benchmarks.peers.training import group_lasso, resequencing, rows, sizing, training

PARTS = {
    "training": training,
    "rows": rows,
    "lasso": group_lasso,
    "quality": quality,
    "defaults": defaults,
    "published": published,
    "prices": prices,
    "adaptive": adaptive,
    "serving": serving,
    "size": sizing,
    "resequence": resequencing,
}
"""In the order of the report."""


def main() -> None:
    """Measure, write and print; exit with 1 if a limit is missed."""
    args = script_options(
        __doc__,
        data={"type": Path, "default": Path("../shared/data"), "help": "folder of the data sets"},
        out={"type": Path, "default": Path(), "help": "folder of peers-report.html"},
        quick=flag("smaller and fewer, for a look"),
        only={"action": "append", "choices": list(PARTS), "help": "a part; may be repeated"},
    )
    args.out.mkdir(parents=True, exist_ok=True)  # fail before hours of work rather than after
    warnings.simplefilter("ignore", AnytimeWarning)  # of the tables, which are given
    measured = []
    print(f"measured on {machine()}\n", flush=True)
    for name in args.only or PARTS:
        start = time.monotonic()
        section = PARTS[name](args.data, args.quick)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        made = f"{now}, in {time.monotonic() - start:,.0f} s{', a quick look' if args.quick else ''}"
        measured.append(msgspec.structs.replace(section, name=name, made=made))
        sections = {stored.name: stored for stored in [*read_sections(args.out / "peers-report.json"), measured[-1]]}
        path = write([sections[part] for part in PARTS if part in sections], args.out)
        print("\n".join(lines(measured[-1])), flush=True)
    print(f"wrote {path}")
    sys.exit(any(finding.verdict == "missed" for section in measured for finding in section.findings))


if __name__ == "__main__":
    main()
