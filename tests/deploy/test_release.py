"""The checks of `make release` that need no network, and the workflow that publishes a release."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from deploy.release import BARE, LEARN, ReleaseError, check_changelog, contents, run

from deploy.project import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


@pytest.mark.parametrize(
    ("text", "draft", "problem"),
    [
        ("# Changelog\n\n## 1.2.0 (2026-01-31)\n", False, None),
        ("# Changelog\n\n## 1.2.0 (unreleased)\n", True, None),
        ("# Changelog\n\n## 1.2.0 (unreleased)\n", False, "write the date"),
        (
            "# Changelog\n\n## 1.1.0 (2026-01-31)\n\n## 1.2.0 (2026-01-31)\n",
            False,
            r"1\.1\.0; pyproject\.toml has 1\.2\.0",
        ),
        ("# Changelog\n", True, "None; pyproject"),
    ],
)
def test_the_changelog_begins_with_the_version_and_a_date(text: str, *, draft: bool, problem: str | None) -> None:
    if problem is None:
        check_changelog(text, "1.2.0", draft=draft)
    else:
        with pytest.raises(ReleaseError, match=problem):
            check_changelog(text, "1.2.0", draft=draft)


def test_a_failed_program_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", "print(1)", cwd=tmp_path) == "1\n"
    with pytest.raises(ReleaseError, match=r"ended with 3:\n(.|\n)*why"):
        run(sys.executable, "-c", "import sys; print('why'); sys.exit(3)", cwd=tmp_path)


def test_what_a_wheel_without_extras_must_do_works_where_the_extras_are_not_used(tmp_path: Path) -> None:
    run(sys.executable, "-c", LEARN.format(path=str(tmp_path / "model.safetensors")), cwd=tmp_path)
    with pytest.raises(ReleaseError, match="installs scikit-learn"):  # after the predictions; it is installed here
        run(sys.executable, "-c", BARE, cwd=tmp_path)


def test_files_of_a_wheel_are_compared_by_content(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        with ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("module.py", text)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")


@pytest.mark.parametrize("schema", ["vendor.github-workflows", "custom.github-workflows-require-timeout"])
def test_the_workflow_of_a_release_is_valid(schema: str) -> None:
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, WORKFLOW, cwd=ROOT)


def test_the_workflow_of_a_release_publishes_what_it_builds() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    made = set(re.findall(r"dist/[\w.-]+", text))
    assert made == {"dist/anytime-linear-image.tar", "dist/sbom.cdx.json"}
    assert text.index("make release") < min(text.index(name) for name in made), "`make release` empties the folder"
    assert "/usr/share/anytime-linear/sbom.cdx.json" in text
    assert all(f"linux/{each}" in text for each in ("amd64", "arm64"))
