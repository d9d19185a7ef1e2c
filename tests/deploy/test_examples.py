"""The Python examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from deploy.project import DEPLOY
from guides import text_of
from service.commands import ENVIRONMENT, command

EXAMPLES = DEPLOY / "examples"


def run(name: str, *arguments: object) -> str:
    """Return the output of an example."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_vehicle_trains_serves_drives_and_counts_every_picture() -> None:
    printed = run("vehicle.py", "--seconds", 1.2)
    assert len(re.findall(r"^\w+ +\d+\.\d+ +\d+\.\d+$", printed, flags=re.MULTILINE)) == 6  # a step each
    line = r"{} +(\d+) of (\d+) +(\d\.\d) of 6 +(-?\d+\.\d+) +(-?\d+\.\d+) +(\d+\.\d+) +(\d+) +(\d+)"
    parts = [[float(n) for n in re.search(line.format(each), printed).groups()] for each in ("second 1", "second 2")]  # type: ignore[union-attr]
    (whole,) = ([float(n) for n in numbers] for numbers in re.findall(line.format("in all"), printed))
    assert [part[1] for part in parts] == [30, 6]
    for at in (0, 1, 6, 7):  # in time, total, braked, missed
        assert sum(part[at] for part in parts) == whole[at]


def test_the_ranking_improves_with_its_budget_on_a_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["ranking.py", "--save", str(tmp_path / "ranking.safetensors")])
    import_module("ranking").main()  # in this process, which has imported scikit-learn
    patient = {"ANYTIME_MAX_LATENESS_MS": "1e6", "ANYTIME_MAX_DEADLINE_MS": "1e7"}
    with command(tmp_path / "ranking.safetensors", **patient) as (_, service):
        printed = run("ranking.py", "--url", service.url, "--seconds", 0)
    rows = re.findall(r"^(no deadline|\d+ ms|budget \S+ ms) +(\d\.\d) +(\d\.\d+) +(\S+)%", printed, flags=re.MULTILINE)
    kinds = [kind.split()[0] for kind, *_ in rows]
    assert kinds == ["no", "16", "8", "4", "2", "1", *["budget"] * 6]
    groups = {kind: float(used) for kind, used, _, _ in rows}
    gains = {kind: float(gain) for kind, _, gain, _ in rows}
    budgets = [kind for kind in gains if kind.startswith("budget")]
    assert [groups[kind] for kind in budgets] == [1, 2, 3, 4, 5, 6]
    assert gains[budgets[-1]] == gains["no deadline"] > gains[budgets[0]] > 0
    assert all(0 <= groups[kind] <= 6 for kind in groups)


def test_every_example_is_documented() -> None:
    helper = {"own_server.py", "stand_ins.mjs"}
    shown = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs", ".sh")} - helper
    assert {name for name in shown if name not in text_of()} == set()
