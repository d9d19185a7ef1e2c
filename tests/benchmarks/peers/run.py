"""All comparisons with peers, as one report: `python tests/benchmarks/peers/run.py --data DIR`.

Peers run in their own environments under `.venv-peers`, created on first use. Each part is written as soon as it is
measured; `--only` measures some parts again, and the report retains the others.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.group_lasso import group_lasso
from benchmarks.peers.quality import quality
from benchmarks.peers.report import lines, machine, read_sections, write
from benchmarks.peers.resequencing import resequencing
from benchmarks.peers.section import Section
from benchmarks.peers.serving import serving
from benchmarks.peers.sizing import sizing
from benchmarks.peers.training_section import rows, training


def parts(data: Path, quick: bool) -> dict[str, Callable[[], Section]]:
    """Return the parts in the order of the report."""
    return {
        "training": lambda: training(quick),
        "rows": lambda: rows(quick),
        "lasso": lambda: group_lasso(data, quick),
        "quality": lambda: quality(data, quick),
        "serving": lambda: serving(quick),
        "size": lambda: sizing(quick),
        "resequence": lambda: resequencing(quick),
    }


def main() -> None:
    """Measure, write and print; exit with 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of peers-report.html")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer, for a look")
    parser.add_argument("--only", action="append", choices=list(parts(Path(), False)), help="a part; may be repeated")
    args = parser.parse_args()
    all_parts = parts(args.data, args.quick)
    args.out.mkdir(parents=True, exist_ok=True)  # fail before hours of work rather than after
    measured = []
    print(f"measured on {machine()}\n", flush=True)
    for name in args.only or list(all_parts):
        start = time.monotonic()
        section = all_parts[name]()
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        made = f"{now}, in {time.monotonic() - start:,.0f} s{', a quick look' if args.quick else ''}"
        sections = {each.name: each for each in read_sections(args.out / "peers-report.json")}
        sections[name] = msgspec.structs.replace(section, made=made)
        measured.append(sections[name])
        path = write([sections[each] for each in all_parts if each in sections], args.out)
        print("\n".join(lines(sections[name])), flush=True)
    print(f"wrote {path}")
    sys.exit(1 if any(finding.verdict == "missed" for section in measured for finding in section.findings) else 0)


if __name__ == "__main__":
    main()
