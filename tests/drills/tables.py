"""Drills as tables."""

from __future__ import annotations

from drills.drilling import Report
from drills.judging import Outcome

__all__ = ["lines", "tell"]

_COLUMNS = ("asked", "server", "fallback", "refused", "broken", "lost", "wrong", "late", "excused", "p99.9 ms")


def tell(report: Report, *, head: bool) -> None:
    """Print a report, with the names of the columns if they have not been printed yet."""
    print("\n".join(lines(report, head=head)), flush=True)


def lines(report: Report, *, head: bool) -> list[str]:
    """A report as lines of a table."""
    told = [f"{'':<51}" + "".join(f"{name:>9}" for name in _COLUMNS) + f"{'well again s':>14}"] if head else []
    for number, (phase, row) in enumerate(report.rows.items()):
        counts = (row.asked, *(row.by[what] for what in Outcome), row.lost, row.wrong, row.late, row.excused)
        line = f"{report.name if number == 0 else '':<22}{phase:<29}"
        line += "".join(f"{count:>9}" for count in counts) + f"{row.p999_ms:>9.1f}"
        if number == 0:
            line += f"{'' if report.recovery_s is None else f'{report.recovery_s:.2f}':>14}"
        told.append(line)
    told += [f"    {note}" for note in report.notes]
    told += [f"    BROKEN: {each}" for each in report.broken]
    return told + [f"    NOT SHOWN: {each}" for each in report.unshown]
