"""A row for each name that users can state: a call with it, and what of the result differs from a call without it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import load
from anytime.model.model import Model
from anytime.moments.files import StoredMoments
from guides import ROOT, text_of

Seen = Mapping[str, Any]
"""What a call returns or leaves behind, by aspect."""

CLOCK = re.compile(r"[\d.,]+(e[-+]?\d+)? (KiB|s\b|rows/s)")


@dataclass(frozen=True)
class Row:
    """How the effect of a name is seen.

    Attributes
    ----------
    stated : Any
        What the call with the name has more than the base call: words, or arguments by name.
    sees : str
        The aspect of the result that must differ.
    other : Any
        What the call without it has instead.
    given : Any
        What both calls have more than the base call.
    shows : str
        Text that the aspect has with the name, and lacks without it; "" for any difference.
    code : int
        Exit code, or status, of the call with the name.
    """

    stated: Any
    sees: str
    other: Any = ()
    given: Any = ()
    shows: str = ""
    code: int = 0


@dataclass(frozen=True)
class Elsewhere:
    """The test file that shows the effect of a name, by some words of it: the name needs more than a call."""

    file: str
    words: str


Table = Mapping[str, Row | Elsewhere]


def cases(tables: Mapping[str, Table]) -> list[Any]:
    """Return the rows of some tables as parameters of a test: the name of the table, that of the row, and the row."""
    return [
        pytest.param(table, name, row, id=f"{table} {name}")
        for table, rows in tables.items()
        for name, row in rows.items()
    ]


def named(guide: str, header: str, column: int = 0) -> set[str]:
    """Return the names in a column of the tables of a guide whose column has this header."""
    found = set[str]()
    for block in re.findall(r"(?:^\|.*\n)+", text_of(guide), flags=re.MULTILINE):
        top, _, *rows = (line.replace("\\|", "/").split("|")[1:-1] for line in block.splitlines())
        if len(top) > column and top[column].strip() == header:
            found |= {re.split("[ :]", name)[0] for row in rows for name in re.findall("`([^`]+)`", row[column])}
    return found


def check(row: Row | Elsewhere, call: Callable[[Any, Any], Seen]) -> None:
    """Fail unless the name has an effect; `call(given, stated)` makes a call."""
    if isinstance(row, Elsewhere):
        assert row.words in (ROOT / row.file).read_text(encoding="utf-8"), f"{row.file} does not have {row.words!r}"
        return
    with_it, without = call(row.given, row.stated), call(row.given, row.other)
    assert with_it["code"] == row.code, with_it
    assert row.sees in with_it, f"the result has {', '.join(with_it)}"
    seen, unseen = with_it[row.sees], without.get(row.sees)
    assert seen != unseen, f"{row.sees} is the same with it and without it: {str(seen)[:300]}"
    assert row.shows in str(seen), str(seen)
    assert not row.shows or row.shows not in str(unseen)


def rounded(values: Any) -> Any:
    """Return numbers with six digits, as lists: smaller differences are of rounding."""
    array = np.asarray(values)
    if array.dtype.kind not in "fc":
        return array.tolist()
    return [None if np.isnan(x) else float(f"{x:.6g}") for x in array.ravel().tolist()]


def of_model(model: Model) -> Seen:
    """Return what a model has learned, without the record of the options that it was trained with."""
    manifest, prefixes = model.manifest, model.prefixes
    steps, columns = manifest.steps, model.expansion.columns
    return {
        "terms": model.expansion.terms.features,
        "ranges": [column.range for column in columns],
        "types": [column.type for column in columns],
        "order": [step.adds for step in steps],
        "costs": rounded(model.costs),
        "alphas": rounded([step.alpha for step in steps]),
        "coefficients": [rounded(prefixes.packed), rounded(prefixes.mean), rounded(prefixes.intercept)],
        "errors": rounded([np.nan if e is None else e for e in (manifest.prior_error, *(s.cv_error for s in steps))]),
        "responses": manifest.responses,
        "classes": manifest.classes,
        "guarantee": manifest.guarantee,
        "calibration": manifest.calibration,
        "certificate": manifest.certificate,
        "stopped": manifest.stopped,
        "rows": manifest.provenance.rows,
        "weight": rounded([manifest.provenance.weight]),
        "unit": model.groups.cost_unit,
        "moments": model.moments is not None or model.curvatures is not None,
        "selected": manifest.selected and manifest.selected.candidates,
        "name": manifest.name,
    }


def of_file(path: Path) -> Seen:
    """Return what a written file contains."""
    match path.suffix:
        case ".safetensors":
            return of_model(load(path))
        case ".moments":
            stored = StoredMoments.load(path)
            record, total = stored.record, stored.total
            return {
                "terms": record.groups.model_dump(exclude_defaults=True),
                "rows": total.rows,
                "weight": rounded([total.weight]),
                "sums": [rounded(total.scatter), rounded(total.mean)],
                "folds": [part.rows for part in stored.parts],
                "parts": [rounded(part.scatter) for part in stored.parts],
                "responses": record.target,
                "classes": record.classes,
                "task": record.task,
                "query": record.query,
            }
        case ".png":
            return {"bytes": path.read_bytes()}
        case _:
            return {"text": CLOCK.sub("", path.read_text(encoding="utf-8"))}


def numbers_of(text: str) -> Any:
    """Return the JSON that a command printed, None if it is another text."""
    try:
        return json.loads(text)
    except ValueError:
        return None


GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "hour", "features": ["h"], "cost": 1.0},
        {"name": "size", "features": ["x"], "cost": 2.0},
        {"name": "code", "features": ["k"], "cost": 3.0},
        {"name": "town", "features": ["t"], "cost": 4.0},
    ],
}


def table(seed: int, rows: int) -> pd.DataFrame:
    """Rows with columns of each type, and targets of each family."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"h": rng.uniform(0, 24, rows).round(2), "x": rng.normal(size=rows).round(3)})
    frame["k"] = rng.integers(1, 4, rows)
    frame["t"] = rng.choice(["a", "b", "c", "d"], rows, p=[0.45, 0.38, 0.1, 0.07])
    frame["p"] = rng.choice(["01", "02", "03"], rows)
    score = np.sin(frame["h"] / 12 * np.pi) + 0.6 * frame["x"] + (frame["k"] == 2) + (frame["t"] == "a")
    frame["y"] = (score + 0.5 * rng.normal(size=rows)).round(4)
    frame["z"] = (3 * frame["x"] * (frame["k"] == 2) + 0.5 * rng.normal(size=rows)).round(4)
    frame["c"] = np.where(frame["y"] > 1.5, "yes", "no")
    frame["m"] = np.array(["u", "v", "w"])[np.digitize(frame["y"], [0.5, 1.5])]
    frame["n"] = rng.poisson(np.exp(0.5 * score))
    frame["v"] = np.exp(frame["y"]).round(4)
    frame["b"] = (frame["y"] > 1).astype(int)
    frame["half"] = np.where(frame["y"] > 1, 0.5, 1.5)
    frame["q"] = np.arange(rows) // 5
    frame["w"] = rng.integers(1, 4, rows)
    frame["d"] = pd.date_range("2020-01-01", periods=rows, freq="53D").strftime("%Y-%m-%d")
    frame.loc[::9, "x"] = np.nan
    frame.loc[7, "x"] = 60.0
    return frame


def orders() -> pd.DataFrame:
    """Rows on which all methods order the groups differently from the default."""
    rng = np.random.default_rng(8)
    names = ["a0", "a1", "b0", "b1", "b2", "c0", "e0", "e1", "e2"]
    M = rng.normal(size=(9, 9))
    X = np.round(rng.normal(size=(40, 9)) @ (M * (rng.random(M.shape) < 0.5) + np.eye(9)), 2)
    y = np.round(X @ rng.normal(size=9) * 0.4 + rng.normal(size=40) * 2, 2)
    return pd.DataFrame(X, columns=names).assign(y=y, c=np.where(y > 0, "yes", "no"), q=np.arange(40) // 5)
