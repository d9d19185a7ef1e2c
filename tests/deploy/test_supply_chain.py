"""Dependencies: their reasons, known vulnerabilities and licences; the checks of a release, and its workflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from deploy.release import BARE, LEARN, ReleaseError, check_changelog, contents, run
from packaging.requirements import Requirement

from deploy.project import DEPLOY, ROOT
from system import free_port, http_server

HASH = f"--hash=sha256:{'0' * 64}"
VULNERABLE = {
    "vulns": [
        {
            "id": "PYSEC-0000-1",
            "summary": "made for a test",
            "affected": [
                {
                    "package": {"name": "leaky", "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.2.0"}]}],
                }
            ],
        }
    ]
}


class Service(BaseHTTPRequestHandler):
    """A service that knows one package."""

    status = 200

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply = json.dumps(VULNERABLE if query["package"]["name"] == "leaky" else {}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def run_audit(lock: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "audit.py"), str(lock), "--url", f"http://127.0.0.1:{port}/v1/query"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def lock_of(folder: Path, *pins: str) -> Path:
    lock = folder / "some.lock"
    lock.write_text("".join(f"{pin} {HASH}\n" for pin in pins), encoding="utf-8")
    return lock


@pytest.mark.parametrize(
    ("pin", "code", "said"),
    [
        ("leaky==1.1.0", 1, "leaky 1.1.0: PYSEC-0000-1, fixed in 1.2.0\n"),
        ("whole==3.1", 0, "no known vulnerability in 2 pins\n"),
    ],
    ids=["vulnerable", "sound"],
)
def test_a_vulnerability_fails_and_is_reported_with_the_fixed_version(
    tmp_path: Path, pin: str, code: int, said: str
) -> None:
    with http_server(Service) as port:
        done = run_audit(lock_of(tmp_path, "sound==2.0", pin), port)
    assert done.returncode == code
    assert done.stderr == (said if code else "")
    assert done.stdout.endswith("" if code else said)


@pytest.mark.parametrize("why", ["connection refused", "it answers 503"])
def test_an_unreachable_service_is_reported_in_one_line_and_is_not_a_failure(tmp_path: Path, why: str) -> None:
    lock = lock_of(tmp_path, "leaky==1.1.0")
    if why == "connection refused":
        done = run_audit(lock, free_port())
    else:
        with http_server(Service, status=503) as port:
            done = run_audit(lock, port)
        assert why in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "was not audited: the service is not reachable" in done.stdout


def test_a_lock_that_cannot_be_read_fails(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("leaky>=1.0\n", encoding="utf-8")
    with http_server(Service) as port:
        done = run_audit(lock, port)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "was not audited" in done.stderr


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BUILT_ON = PAGE[PAGE.index("## What it is built on") :]


def names(requirements: list[str]) -> set[str]:
    """Return the packages of requirements, without the project's own extras."""
    return {Requirement(each).name for each in requirements} - {PROJECT["project"]["name"]}


def documented() -> dict[str, set[str]]:
    """Return the packages in each part of the table; a row without a part belongs to the one before."""
    found: dict[str, set[str]] = {}
    part = ""
    for heading, packages, reason in re.findall(r"^\| (.*?) ?\| (.+?) \| (.+?) \|$", BUILT_ON, flags=re.MULTILINE):
        part = heading.strip("`") or part
        assert reason
        found.setdefault(part, set()).update(packages.split(", "))
    del found["for"]
    return found


def test_exactly_the_dependencies_are_documented_with_their_reasons() -> None:
    project = PROJECT["project"]
    extras = {name: names(each) for name, each in project["optional-dependencies"].items() if name != "all"}
    assert documented() == {"the library": names(project["dependencies"]), **extras}


def test_every_development_tool_is_documented() -> None:
    sentence = BUILT_ON[BUILT_ON.index("To develop:") :]
    mentioned = set(re.findall(r"[\w-]+", sentence))
    groups = PROJECT["dependency-groups"]
    tools = [tool for group in ("build", "dev", "docs") for tool in groups[group] if isinstance(tool, str)]
    assert names(tools) <= mentioned


def test_all_is_all() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (whole,) = (Requirement(each) for each in extras["all"])
    assert whole.extras == set(extras) - {"all"}


SCRIPT = DEPLOY / "licences.py"


def collect(out: Path, *folders: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(out), *map(str, folders)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def install(folder: Path, name: str, metadata: str = "", **files: str) -> None:
    """Install a package that has only metadata and some files; `__` in their names is a slash."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    contents = {f"{info.name}/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}"}
    contents |= {path.replace("__", "/").replace("INFO", info.name): text for path, text in files.items()}
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in [*contents, "gone/LICENSE"]), encoding="utf-8")


def test_every_package_is_listed_with_its_licence_and_its_texts(tmp_path: Path) -> None:
    folder, out = tmp_path / "packages", tmp_path / "out.txt"
    install(folder, "Zebra", "License-Expression: MIT\n", INFO__licenses__LICENSE="the words of zebra")
    install(folder, "apple", "Classifier: License :: OSI Approved :: BSD License\n")
    install(folder, "plain", INFO__COPYING="only a text")
    install(folder, "script", "License: MIT\n", **{"script__a.js": "/* Licensed MIT by S */ run()"})
    done = collect(out, folder)
    assert (done.returncode, done.stderr) == (0, "")
    text = out.read_text(encoding="utf-8")
    headings = ("apple 1.0: BSD License", "plain 1.0: see below", "script 1.0: MIT", "Zebra 1.0: MIT")
    assert [text.index(heading) for heading in headings] == sorted(text.index(heading) for heading in headings)
    assert all(words in text for words in ("the words of zebra", "only a text", "/* Licensed MIT by S */"))
    assert "run()" not in text


@pytest.mark.parametrize("metadata", ["", "License: UNKNOWN\n", "Classifier: Topic :: Software Development\n"])
def test_a_package_without_a_licence_is_an_error(tmp_path: Path, metadata: str) -> None:
    folder, out = tmp_path / "packages", tmp_path / "out.txt"
    install(folder, "apple", "License-Expression: MIT\n")
    install(folder, "dark", metadata, dark__LICENSE="a file of its code, which may be about anything")
    done = collect(out, folder)
    assert done.returncode == 1
    assert "no licence found for dark 1.0" in done.stderr
    assert not out.exists()


def test_every_installed_package_has_a_licence(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    done = collect(out)
    assert (done.returncode, done.stderr) == (0, "")
    text = out.read_text(encoding="utf-8")
    assert "\nnumpy " in text
    assert "OpenBLAS" in text  # bundled with numpy


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
