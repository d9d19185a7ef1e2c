"""Licences of everything that is installed, as one text: `python deploy/licences.py OUT [SITE-PACKAGES...]`.

For each package its name, version and licence as its metadata tell them, then every text that it brings along, and the
heads of scripts for browsers that name a licence. Fails where a package says nothing of a licence: then somebody has to
look. Needs nothing but Python; read are the packages of the interpreter that runs it, unless folders are named.
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
_LONGEST = 100
"""Characters of the field `License`; in some packages it is the whole text."""


def main(arguments: list[str]) -> int:
    """Write the text, or tell which packages say nothing of a licence; the exit code."""
    out, *folders = arguments
    found = distributions(path=folders) if folders else distributions()
    packages = sorted(found, key=lambda package: package.name.lower())
    silent = [package for package in packages if not (licence_of(package) or any(texts_of(package)))]
    if silent:
        names = ", ".join(f"{package.name} {package.version}" for package in silent)
        print(f"no licence is told by {names}; find out what they are under, or do without them", file=sys.stderr)
        return 1
    Path(out).write_text("\n".join(collected(packages)), encoding="utf-8")
    return 0


def collected(packages: list[Distribution]) -> Iterator[str]:
    """Yield the lines: a heading a package, then its texts."""
    yield f"What {len(packages)} packages are under, and their own words on it.\n"
    for package in packages:
        yield "=" * 100
        yield f"{package.name} {package.version}: {licence_of(package) or 'see below'}\n"
        for name, text in texts_of(package):
            yield f"--- {name}\n"
            yield f"{text.strip()}\n"


def licence_of(package: Distribution) -> str:
    """Licence in a few words: an SPDX expression, or else what the older fields say; empty if they say nothing."""
    told = package.metadata
    if expressions := told.get_all("License-Expression"):
        return str(expressions[0])
    classified = [each for each in told.get_all("Classifier") or [] if each.startswith(_CLASSIFIER)]
    if classified:
        return ", ".join(each.rpartition(" :: ")[2] for each in classified)
    field = "".join(told.get_all("License") or []).strip()
    return "" if field == "UNKNOWN" or len(field) > _LONGEST else field


def texts_of(package: Distribution) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each text on its licence that a package has brought along."""
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if not path.is_file():  # what was installed and is not kept
            continue
        if _is_text(file):
            yield str(file), path.read_text(encoding="utf-8", errors="replace")
        elif file.suffix == ".js" and (head := _head(path)):
            yield str(file), head


def _is_text(file: PurePath) -> bool:
    """Whether a file is about the licence, by where it is and what it is called."""
    inside = file.parts[0].endswith(".dist-info") and ("licenses" in file.parts[1:-1] or len(file.parts) == 2)
    return inside and (bool(_TEXT.match(file.name)) or "licenses" in file.parts)


def _head(script: Path) -> str:
    """First comment of a script, where it names a licence."""
    with script.open(encoding="utf-8", errors="replace") as file:
        found = _HEAD.match(file.read(_HEAD_BYTES))
    return found[0].strip() if found and "licen" in found[0].lower() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
