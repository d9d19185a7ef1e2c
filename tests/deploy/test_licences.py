"""The licences of the installed packages, collected into one text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.project import DEPLOY

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
