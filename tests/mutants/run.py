"""`make mutants`: change one operator, constant or branch at a time, and report the share that the tests notice.

A mutant is tried in a copy of the project, with the tests that reach its line, the quick ones first. It is noticed if a
test fails, or if the limit is exceeded, twice, by tests that end well before it without the change. A process in each
copy has imported all packages, and forks for each run (`warm.py`). Results are stored in `.mutants` at once; the next
call continues, and retries the mutants of files that have changed. The map of the tests that reach a line is made by
the first call, which runs the whole suite; later calls add new and changed tests to it. Equivalent mutants are listed
in `equivalent.txt`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import flag, script_options
from mutants.reach import Reach, copy_tree, environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")

LIMITS_S = (30.0, 60.0)
"""Limits of the tests that are tried first, which were recorded with a few seconds, and of the others."""

WELL_BELOW = 2 / 3
"""Share of the limit in which tests end without the change if exceeding the limit with it means a hang."""

FIRST = ("selection", "moments", "inference", "limits", "http", "sessions", "core")
"""Folders whose survivors are listed first."""

_stamps = count(1)

_ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Mod_FloorDiv", "Pow_Mul")
_BITS = ("RShift_LShift", "LShift_RShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitAnd")
_COMPARISONS = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")

OPERATORS = (
    *(f"ReplaceBinaryOperator_{pair}" for pair in (*_ARITHMETIC, *_BITS)),
    *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARISONS),
    *(f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer"),
    *("AddNot", "ExceptionReplacer", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)
"""One replacement for each operator. Most others, such as `<<` for `+`, raise at once, and any test notices them."""

ARITHMETIC = ("arith_expr", "term", "power", "shift_expr", "and_expr", "xor_expr", "expr")
"""Nodes of the grammar whose operators have two operands."""


@dataclass(frozen=True)
class Mutant:
    """A change of one line. Its identity is the text of the line, so that it survives edits elsewhere in the file.

    Attributes
    ----------
    file : str
        Path from the root of the project.
    text : str
        The line without its indentation.
    operator : str
        Name of the operator of cosmic-ray.
    occurrence : int
        Number among the mutants of the file with the same text and operator.
    line : int
        Number of the line at present.
    index : int
        Number among the mutants of the file with the same operator, as cosmic-ray counts them.
    """

    file: str
    text: str
    operator: str
    occurrence: int
    line: int = field(compare=False)
    index: int = field(compare=False)

    @property
    def key(self) -> str:
        return f"{self.file} | {self.operator} {self.occurrence} | {self.text}"


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a source file; some of them do not compile."""
    nodes = list(ast_nodes(get_ast(source)))
    lines = source.splitlines()
    annotations = _annotations(source)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        seen: Counter[str] = Counter()
        positions = ((node, start) for node in nodes for start, _ in operator.mutation_positions(node))
        for index, (node, start) in enumerate(positions):
            line = lines[start[0] - 1]
            text = line.strip()
            if "if TYPE_CHECKING" in text or ("BitOr_" in name and any(a <= start < b for a, b in annotations)):
                continue  # runs nowhere
            if name == "ExceptionReplacer" and not re.match(r"\w+(?![\w.])", line[start[1] :]):
                continue  # cosmic-ray cannot replace a dotted name
            if "Binary" in name and node.parent.type not in ARITHMETIC:
                continue  # the `*` before keywords, or the `**` of a dict
            yield Mutant(file, text, name, seen[text], start[0], index)
            seen[text] += 1


def mutated(source: str, mutant: Mutant) -> str | None:
    """Return the source with the change, or None if that does not compile."""
    changed: str | None = mutate_code(source, get_operator(f"core/{mutant.operator}")(), mutant.index)
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(changed or "", mutant.file, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return changed


def _annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the start and the end of each annotation, as lines and columns."""
    found = (getattr(node, name, None) for node in ast.walk(ast.parse(source)) for name in ("annotation", "returns"))
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in found
        if node is not None
    ]


@dataclass(frozen=True)
class Result:
    """What became of a mutant: `noticed` by a test or by a hang, `survived`, or `unreached` by any test."""

    key: str
    source: str
    outcome: str
    by: str
    tests: int
    seconds: float
    where: str
    change: str

    @property
    def folder(self) -> str:
        """Return the folder of the concept, such as `models/anytime/selection`."""
        return "/".join(self.key.split(" | ")[0].split("/")[:-1][:3])


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def equivalent(path: Path = EQUIVALENT) -> set[str]:
    """Return the keys of the mutants that change nothing. The lines before each, which begin with `#`, say why."""
    return {line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}


def all_mutants(root: Path, only: str = "") -> list[Mutant]:
    """Return the mutants of `models/` and `service/`, or of a folder or file in them, without equivalent ones."""
    files = (path for name in ("models", "service") for path in sorted((root / name).rglob("*.py")))
    names = [str(path.relative_to(root)) for path in files]
    excluded = equivalent()
    return [
        mutant
        for name in names
        if name.startswith(only)
        for mutant in mutants_of(name, (root / name).read_text(encoding="utf-8"))
        if mutant.key not in excluded
    ]


def sampled(root: Path, mutants: Iterable[Mutant], number: int | None, seed: int) -> Iterator[tuple[Mutant, str, str]]:
    """Yield a random sample of mutants that compile, each with the source of its file and the changed source.

    The order is that of a hash of the seed and the mutant: an edit elsewhere does not change it.
    """
    found = 0
    for mutant in sorted(mutants, key=lambda m: digest(f"{seed} {m.key}")):
        if found == number:
            return
        source = (root / mutant.file).read_text(encoding="utf-8")
        if (changed := mutated(source, mutant)) is not None:
            found += 1
            yield mutant, source, changed


PACKAGES = (
    "aiohttp fastapi httpx joblib msgspec pandas prometheus_client pyarrow.compute pyarrow.csv pyarrow.parquet "
    "pydantic_settings rich.console safetensors.numpy scipy.linalg scipy.optimize scipy.sparse.linalg scipy.stats "
    "sklearn.linear_model sklearn.model_selection starlette.testclient typer uvicorn uvloop websockets.sync.client yaml"
)
"""What most tests import. Each run imports the packages of the project, since a mutant changes them."""


class Copy:
    """A copy of the project, and the process that runs its tests."""

    def __init__(self, tree: Path, packages: str = PACKAGES) -> None:
        self.tree = tree
        self._warm = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("warm.py")), *packages.split()],
            cwd=tree,
            env=environment(tree) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            bufsize=0,  # or `select` would wait for a line that was already read
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Run tests until one fails; return the exit code, None if the limit was exceeded, and the output."""
        names, output = self.tree / "chosen.tmp", self.tree / "output.tmp"
        names.write_text("\n".join(tests), encoding="utf-8")
        output.write_text("", encoding="utf-8")
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(f"{names} {output}\n".encode())
        run = int(self._warm.stdout.readline())
        ended = select.select([self._warm.stdout], [], [], limit_s)[0]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run, signal.SIGKILL)  # also the servers that the tests have started
        code = int(self._warm.stdout.readline())
        return code if ended else None, output.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        with self._warm:
            self._warm.kill()


def check_imports(tree: Path) -> None:
    """Raise RuntimeError if tests in a copy would import the packages of the checkout."""
    code = "import anytime as a, anytime_service as s; print(a.__file__, s.__file__, sep=chr(10))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tree, env=environment(tree), check=True, capture_output=True, text=True)
    if not all(Path(file).is_relative_to(tree) for file in done.stdout.splitlines()):
        raise RuntimeError(f"tests in {tree} would import {done.stdout.split()}; expected packages below that folder")


@contextlib.contextmanager
def changed_to(path: Path, text: str) -> Iterator[None]:
    """Replace a file for a while. Byte code is found by size and second, so each change has a second of its own."""
    original, at = path.read_text(encoding="utf-8"), path.stat().st_mtime
    path.write_text(text, encoding="utf-8")
    os.utime(path, (at, at + next(_stamps)))
    try:
        yield
    finally:
        path.write_text(original, encoding="utf-8")
        os.utime(path, (at, at))


def tried(copy: Copy, mutant: Mutant, changed: str, waves: Sequence[Sequence[str]]) -> tuple[str, str, int]:
    """Try a mutant with some tests, then with others; return the outcome, the test that noticed, and how many ran."""
    ran = 0
    for wave, limit_s in zip(waves, LIMITS_S, strict=False):
        tests = [name for name in wave if (copy.tree / name.partition("::")[0]).exists()]
        exceeded = False
        while tests:
            with changed_to(copy.tree / mutant.file, changed):
                code, output = copy.run(tests, limit_s)
            if code == 0:
                ran += len(tests)
                break
            if code is None:
                if copy.run(tests, WELL_BELOW * limit_s)[0] != 0:
                    del tests[len(tests) // 2 :]
                elif exceeded:
                    return "noticed", "the limit", ran + len(tests)
                exceeded = True  # twice, since other processes may have been in the way
            elif missing := set(re.findall(r"^ERROR: not found: \S+?/(tests/[^[\n]*)", output, flags=re.MULTILINE)):
                tests = [name for name in tests if name.partition("[")[0] not in missing]  # as pytest names them
            else:
                failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, flags=re.MULTILINE)
                return "noticed", failed[1] if failed else f"exit code {code}", ran + len(tests)
    return ("survived" if ran else "unreached"), "", ran


def one_line(mutant: Mutant, source: str, changed: str) -> str:
    """Return the change as one line."""
    old, new = (text.splitlines() for text in (source, changed))
    here = slice(mutant.line - 1, mutant.line - len(old) + len(new))
    return f"- {old[mutant.line - 1].strip()}  + {' '.join(line.strip() for line in new[here])}"


def stored(path: Path) -> dict[str, Result]:
    """Return the last result of each mutant."""
    if not path.exists():
        return {}
    results = (Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {result.key: result for result in results}


def sweep(
    sample: Sequence[tuple[Mutant, str, str]],
    path: Path,
    attempt: Callable[[Mutant, str, str], tuple[str, str, int]],
    jobs: int = 1,
    again: bool = False,
) -> list[Result]:
    """Try the mutants that have no result yet, store each result at once, and return those of the sample."""
    known = stored(path)

    def settled(mutant: Mutant, source: str) -> bool:
        result = known.get(mutant.key)
        return result is not None and result.source == digest(source) and not (again and result.outcome != "noticed")

    def work(each: tuple[Mutant, str, str]) -> Result:
        mutant, source, changed = each
        begin = time.monotonic()
        outcome, by, tests = attempt(mutant, source, changed)
        where, change = f"{mutant.file}:{mutant.line}", one_line(mutant, source, changed)
        return Result(mutant.key, digest(source), outcome, by, tests, time.monotonic() - begin, where, change)

    todo = [each for each in sample if not settled(*each[:2])]
    with ThreadPoolExecutor(jobs) as pool, path.open("a", encoding="utf-8") as file:
        for number, done in enumerate(as_completed([pool.submit(work, each) for each in todo]), start=1):
            result = done.result()
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            known[result.key] = result
            print(
                f"{number} of {len(todo)}: {result.outcome} {result.where} {result.change}", file=sys.stderr, flush=True
            )
    return [known[mutant.key] for mutant, *_ in sample]


def report(results: Iterable[Result]) -> list[str]:
    """Return the share that is noticed by folder, with its standard error, and the survivors."""
    by_folder: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_folder[result.folder].append(result)
    everything = [result for found in by_folder.values() for result in found]
    lines = [f"{'folder':36}{'mutants':>8}{'noticed':>9}{'share':>7}  standard error"]
    for folder, found in (*sorted(by_folder.items()), ("all", everything)):
        noticed = sum(result.outcome == "noticed" for result in found)
        share = noticed / max(len(found), 1)
        error = math.sqrt(share * (1 - share) / max(len(found), 1))
        lines.append(f"{folder:36}{len(found):8d}{noticed:9d}{100 * share:6.1f}%  {100 * error:.1f}%")
    survivors = [result for result in everything if result.outcome != "noticed"]
    survivors.sort(key=lambda r: (r.folder.split("/")[-1] not in FIRST, r.where))
    return [
        *lines,
        "",
        *(f"{r.where}  {r.change}{'  (unreached)' if r.outcome == 'unreached' else ''}" for r in survivors),
    ]


def main(words: Sequence[str] | None = None) -> int:
    options = script_options(
        __doc__,
        words,
        sample={"type": int, "help": "mutants to try, chosen at random; default: all"},
        seed={"type": int, "default": 1, "help": "seed of the sample"},
        only={"default": "", "metavar": "PATH", "help": "restrict the sample to a folder or file"},
        jobs={"type": int, "default": 2, "help": "mutants tried at the same time, and workers of the map"},
        again=flag("retry the survivors, after a change of the tests"),
        report=flag("print the results so far, and try nothing"),
        fresh=flag("discard the map and the results"),
    )
    if options.fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "results.jsonl"
    known, whole = stored(path), options.report and options.sample is None
    # A mutant takes 30 ms to make, and a report of all needs only those with a result.
    mutants = (each for each in all_mutants(ROOT, options.only) if not whole or each.key in known)
    sample = list(sampled(ROOT, mutants, options.sample, options.seed))
    if options.report:
        print("\n".join(report(known[mutant.key] for mutant, *_ in sample if mutant.key in known)))
        return 0
    reach = Reach(FOLDER / "map")
    if reach.data.exists():
        reach.update(ROOT, options.jobs)
    else:
        reach.record(ROOT, options.jobs)
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(options.jobs):
        copy_tree(ROOT, FOLDER / str(number))
        check_imports(FOLDER / str(number))
        copies.put(Copy(FOLDER / str(number)))

    def attempt(mutant: Mutant, source: str, changed: str) -> tuple[str, str, int]:
        tests = reach.chosen(mutant.file, reach.reaching(mutant.file, mutant.line, source))
        copy = copies.get()
        try:
            return tried(copy, mutant, changed, tests)
        finally:
            copies.put(copy)

    print("\n".join(report(sweep(sample, path, attempt, options.jobs, options.again))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
