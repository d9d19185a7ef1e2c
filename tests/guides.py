"""The guides of the project: their texts, their blocks of code, and whether an output is the one that a guide shows."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("models", "models/guides", "service", "deploy", "tests")
GUIDES = (
    *sorted(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),
    *sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md")),
)
RUN = ("sh", "python", "c")
OUTPUT = ("text", "json")
OTHER = ("mermaid", "yaml", "bibtex")

_BLOCK = re.compile(r"^(?:<!-- untested: ([^\n]+) -->\n)?```([^\n]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"\.\.\.|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])|\w+|[^\w\s]")
_VERSION = re.compile(r"(?<![\w.])[0-9a-f]{16}\b")
_DURATION = re.compile(r'("elapsed_ms": ?)[-\d.e]+')


@dataclass(frozen=True)
class Block:
    """A block of code in a guide: its language, its text, its line, and why it is not tested, if it is not."""

    language: str
    text: str
    line: int
    untested: str | None


def text_of(*names: str) -> str:
    """Return the text of guides, given relative to the project; of all guides without a name."""
    paths = [ROOT / name for name in names] or GUIDES
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a guide."""
    return [
        Block(found[2], found[3], text.count("\n", 0, found.start()) + 1, found[1]) for found in _BLOCK.finditer(text)
    ]


def matches(shown: str, printed: str) -> bool:
    """Return whether an output is the shown one: spaces and digits after rounding do not count, `...` is anything."""
    tokens = _tokens(printed)
    parts: list[list[str]] = [[]]
    for token in _tokens(shown):
        if token == "...":
            parts.append([])
        else:
            parts[-1].append(token)
    at = 0
    for number, part in enumerate(parts):
        if number and number == len(parts) - 1 and part:  # the last part ends the output
            at = max(at, len(tokens) - len(part))
        latest = len(tokens) - len(part) if number else 0
        while at <= latest and not _equal(part, tokens[at : at + len(part)]):
            at += 1
        if at > latest:
            return False
        at += len(part)
    return at == len(tokens) or (len(parts) > 1 and not parts[-1])


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_DURATION.sub(r"\g<1>0", _VERSION.sub("VERSION", text)))


def _equal(part: list[str], tokens: list[str]) -> bool:
    return len(part) == len(tokens) and all(map(_same, part, tokens))


def _same(shown: str, printed: str) -> bool:
    """Return whether two tokens are equal; numbers may differ by one in the last digit shown, counts may not."""
    if shown == printed:
        return True
    try:
        difference = abs(float(shown) - float(printed))
    except ValueError:
        return False
    if "e" in shown:
        return math.isclose(float(shown), float(printed), rel_tol=0.05)
    whole = "." not in shown and "." not in printed
    if whole and abs(float(shown)) < 1000:
        return False
    return difference <= 1.01 * 10.0 ** -len(shown.partition(".")[2])


class Shell:
    """One bash for all commands of a guide, as a reader has one terminal; a failed command ends it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.scripts = folder / "scripts"
        self.scripts.mkdir()
        self.errors = (self.scripts / "errors").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def run(self, commands: str, number: int) -> tuple[str, Path]:
        """Return what commands print, and the folder in which they end; raise AssertionError if one fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        script = self.scripts / f"{number}.sh"
        script.write_text(commands, encoding="utf-8")
        self.process.stdin.write(f'. "{script}" < /dev/null\nprintf "\\nend of {script} %s\\n" "$PWD"\n')
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(f"end of {script} "):
                return "".join(lines)[:-1], Path(line.split()[-1])
            lines.append(line)
        self.errors.seek(0)
        raise AssertionError(f"{commands}\nended with {self.process.wait()}:\n{self.errors.read()}{''.join(lines)}")
