"""The documentation site: its gallery runs and shows what its texts say, its navigation is complete, and it builds.

The Python examples run.
"""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from deploy.docs import hooks
from deploy.docs.hooks import DOCS, PACKAGES, members, not_in_reference

from deploy.project import DEPLOY
from guides import GUIDES, ROOT, text_of
from service.commands import ENVIRONMENT, command

CLAIMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ranking": lambda of: (
        of["curves"]["hinge"] == sorted(of["curves"]["hinge"])
        and np.all(np.diff([of["curves"]["linear"][1:], of["curves"]["hinge"][1:]], axis=0) > 0)
    ),
    "vehicle": lambda of: np.all(np.array(of["rmse"]["anytime: the complete prefix"]) <= [*of["rmse"].values()]),
    "clinic": lambda of: [of[m].manifest.steps[at].adds[0] for m, at in (("old", 2), ("new", 1))] == ["blood-draw"] * 2,
    "fraud": lambda of: of["precisions"][3] > of["same"][-1] - 0.02 and of["paid"][3] < of["model"].costs_[-1] / 2,
    "nhanes": lambda of: (
        max(of["measured"]["tests"], key=lambda test: test[2][0] / test[1])[0] == "sedimentation rate"
        and all(0.8 < auc[0] < auc.max() < 0.9 for _, auc in of["curves"].values())
    ),
    "streaming": lambda of: (
        [model.sequence_[-1] for model in of["models"].values()] == ["good sensor", "cheap sensor"]
        and of["r2"][0.7][-1] > 0.85 > 0.5 > of["r2"][1.0][-1]
    ),
    "own_criterion": lambda of: (
        of["noise_first"]["fr"] > 10
        and of["noise_first"]["cp"] == of["noise_first"]["of your own"] == 0
        and min(of["curves"][name][3] for name in ("cp", "of your own")) > of["curves"]["fr"][3] + 0.1
    ),
}
"""What the text of each script of the gallery says of its results, given the script's variables."""


def paths(nav: Any) -> list[str]:
    """Return the pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [path for item in (nav.values() if isinstance(nav, dict) else nav) for path in paths(item)]


@pytest.fixture(scope="module")
def nav() -> list[str]:
    return paths(yaml.safe_load((DOCS / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


@pytest.mark.parametrize("script", sorted((DOCS / "gallery").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_of_the_gallery_draws_what_its_text_says(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context(fname=DOCS / "matplotlibrc", rc={"backend": "svg"}):
        variables = runpy.run_path(str(script), run_name="__main__")
        variables["plt"].close("all")
    assert ElementTree.parse(tmp_path / f"{script.stem}.svg").getroot().tag.endswith("svg")
    assert "nan" not in capsys.readouterr().out
    assert CLAIMS[script.stem](variables)


def test_the_navigation_has_every_guide_every_script_and_every_page(nav: list[str]) -> None:
    guides = {"CHANGELOG.md", *(path.relative_to(ROOT).as_posix() for path in GUIDES)}
    scripts = [f"gallery/{path.stem}.md" for path in (DOCS / "gallery").glob("*.py")]
    pages = [path.relative_to(DOCS / "pages").as_posix() for path in (DOCS / "pages").rglob("*.md")]
    assert sorted(nav) == sorted([*guides, *scripts, *pages])


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name(package: str) -> None:
    assert not_in_reference(package) == []


def test_a_linked_folder_shows_its_text_and_pictures_and_no_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    folder = tmp_path / "clinic"
    (folder / "plots").mkdir(parents=True)
    (folder / "groups.yaml").write_text("cost_unit: ms\n")
    (folder / "model.safetensors").write_bytes(b"\xff\xfe\x00")
    (folder / "plots" / "curve.png").write_bytes(b"\x89PNG")
    (folder / "plots" / "curve.svg").write_text("<svg/>")
    added: dict[str, str | bytes] = {}
    for link in hooks.linked("README.md", "[a](clinic) [b](clinic/model.safetensors)"):
        hooks._add_source(link, added.__setitem__)
    index = str(added.pop("clinic/index.md"))
    assert set(re.findall(r"\]\((.*)\)", index)) == {"groups.yaml.md", "plots/curve.png", "plots/curve.svg"}
    assert set(added) == {"clinic/groups.yaml.md", "clinic/plots/curve.png", "clinic/plots/curve.svg"}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that builds the site, without running the gallery, and returns its folder."""
    pytest.importorskip("mkdocs", reason="no documentation packages; `make docs` installs them")
    from mkdocs.commands.build import build  # noqa: PLC0415
    from mkdocs.config import load_config  # noqa: PLC0415

    def run(*, addition: str = "", undocumented: list[str] | None = None) -> Path:
        shutil.copytree(DOCS / "pages", tmp_path / "pages")
        with (tmp_path / "pages" / "reference" / "errors.md").open("a", encoding="utf-8") as page:
            page.write(addition)
        config = load_config(
            str(DOCS / "mkdocs.yml"), docs_dir=str(tmp_path / "pages"), site_dir=str(tmp_path / "site")
        )
        hooks = config.hooks["hooks.py"]
        monkeypatch.setattr(hooks, "gallery_page", lambda _: ("# A script\n", b"<svg/>"))
        if undocumented:
            monkeypatch.setattr(hooks, "undocumented", lambda _: undocumented)
        build(config)
        return tmp_path / "site"

    return run


@pytest.mark.filterwarnings("ignore")
def test_the_site_has_every_public_method_and_loads_nothing_from_elsewhere(built: Callable[..., Path]) -> None:
    site = built()
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert not any(f'{name}="http' in html for name in ("src", "srcset")), page
        assert '<link rel="stylesheet" href="http' not in html
    reference = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").iterdir())
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            shown = [name, *(f"{name}.{each}" for each in members(getattr(importlib.import_module(package), name)))]
            assert not [each for each in shown if f'id="{package}.{each}"' not in reference]
    assert (site / "assets" / "mermaid.js").stat().st_size > 1e6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"addition": "\n[a page](missing.md)\n"}, "contains a link 'missing.md'"),
        ({"addition": "\n[a heading](../models/README.md#missing)\n"}, "does not contain an anchor '#missing'"),
        ({"undocumented": ["Model"]}, "no docstring of Model"),
    ],
    ids=["page", "heading", "docstring"],
)
def test_the_build_fails_on_a_broken_link_and_on_a_missing_docstring(
    wrong: dict[str, Any], why: str, built: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception, match="Aborted with"):
        built(**wrong)
    assert why in caplog.text


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
