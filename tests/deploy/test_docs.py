"""The documentation site: its gallery runs and shows what its texts say, its navigation is complete, and it builds."""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from deploy.docs import hooks
from deploy.docs.hooks import DOCS, PACKAGES, members, not_in_reference

from guides import GUIDES, ROOT

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
