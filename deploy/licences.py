"""Licences of all installed packages, as one text: `python deploy/licences.py OUT [SITE-PACKAGES...]`.

The text has the name, version and licence of each package from its metadata, then every licence text in the package,
and the head comments of browser scripts that name a licence. The script exits with 1 if a package has no licence. It
needs only Python. It reads the packages of the interpreter that runs it, unless the arguments name folders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

__all__ = ["collected", "licence_of", "main", "texts_of"]

_TEXT = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)
_HEAD = re.compile(r"\s*/\*.*?\*/", re.DOTALL)
_HEAD_BYTES = 4096
_CLASSIFIER = "License :: "
_MAX_LENGTH = 100
"""Most characters of the field `License`; some packages put the complete text there."""


def main(arguments: list[str]) -> int:
    """Write the text, or print the packages without a licence; return the exit code."""
    out, *folders = arguments
    found = distributions(path=folders) if folders else distributions()
    packages = sorted(found, key=lambda package: package.name.lower())
    silent = [package for package in packages if not (licence_of(package) or any(texts_of(package)))]
    if silent:
        names = ", ".join(f"{package.name} {package.version}" for package in silent)
        print(f"no licence found for {names}; look it up, or remove the package", file=sys.stderr)
        return 1
    Path(out).write_text("\n".join(collected(packages)), encoding="utf-8")
    return 0


def collected(packages: list[Distribution]) -> Iterator[str]:
    """Yield the lines: a heading per package, then its texts."""
    yield f"Licences of {len(packages)} packages, with their texts.\n"
    for package in packages:
        yield "=" * 100
        yield f"{package.name} {package.version}: {licence_of(package) or 'see below'}\n"
        for name, text in texts_of(package):
            yield f"--- {name}\n"
            yield f"{text.strip()}\n"


def licence_of(package: Distribution) -> str:
    """Return the licence in a few words: an SPDX expression, or the older fields; "" without a licence."""
    metadata = package.metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    classified = [each for each in metadata.get_all("Classifier") or [] if each.startswith(_CLASSIFIER)]
    if classified:
        return ", ".join(each.rpartition(" :: ")[2] for each in classified)
    field = "".join(metadata.get_all("License") or []).strip()
    return "" if field == "UNKNOWN" or len(field) > _MAX_LENGTH else field


def texts_of(package: Distribution) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each licence text in a package."""
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if not path.is_file():  # installed, then removed
            continue
        if _is_text(file):
            yield str(file), path.read_text(encoding="utf-8", errors="replace")
        elif file.suffix == ".js" and (head := _head(path)):
            yield str(file), head


def _is_text(file: PurePath) -> bool:
    """Return whether a file is a licence text, by its folder and name."""
    inside = file.parts[0].endswith(".dist-info") and ("licenses" in file.parts[1:-1] or len(file.parts) == 2)
    return inside and (bool(_TEXT.match(file.name)) or "licenses" in file.parts)


def _head(script: Path) -> str:
    """Return the first comment of a script if it names a licence, else an empty string."""
    with script.open(encoding="utf-8", errors="replace") as file:
        found = _HEAD.match(file.read(_HEAD_BYTES))
    return found[0].strip() if found and "licen" in found[0].lower() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
