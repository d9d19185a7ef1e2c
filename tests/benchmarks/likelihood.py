"""Likelihoods compared with scikit-learn: `python tests/benchmarks/likelihood.py --data DIR`.

On the intrusions of KDD Cup 1999 the whole binomial path, every prefix at its optimum, alternates with one
`LogisticRegression(solver="newton-cholesky")` on all columns at the same penalty. On the digits of mfeat the softmax
path is plotted next to that of least squares on one-hot classes, error against cost. Cross-validation of softmax
alternates with `LogisticRegressionCV` on a synthetic table.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss

from anytime import AnytimeClassifier, load_groups
from anytime.groups import FeatureGroups
from anytime.types import FamilyName, Float, Index

THREADS = 2


def table(folder: Path, name: str, target: str, groups: FeatureGroups) -> tuple[Float, Index]:
    """Return the features in the order of the groups, and the target."""
    file = pq.ParquetFile(folder / f"{name}.parquet")
    X = np.empty((file.metadata.num_rows, len(groups.features)))
    y = np.empty(len(X), dtype=np.intp)
    start = 0
    for batch in file.iter_batches(8192):  # in pieces, so that the data are the peak of memory so far
        rows = slice(start, start + batch.num_rows)
        for j, feature in enumerate(groups.features):
            X[rows, j] = batch[feature].to_numpy(zero_copy_only=False)
        y[rows] = batch[target].to_numpy(zero_copy_only=False)
        start = rows.stop
    return X, y


def classifier(groups: FeatureGroups, alpha: float) -> AnytimeClassifier:
    """Return the unfitted trainer."""
    return AnytimeClassifier(groups, alpha=alpha, n_jobs=THREADS)


def peer(n: int, alpha: float) -> LogisticRegression:
    """Return a model of all columns at the same penalty."""
    return LogisticRegression(C=1 / (n * alpha), solver="newton-cholesky", tol=1e-8, max_iter=1000)


def megabytes() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(data: Path, alpha: float) -> None:
    """Print the peak memory of the data alone, and of the binomial path."""
    folder = data / "kddcup99"
    groups = load_groups(folder / "groups.json")
    X, y = table(folder, "train", "attack", groups)
    before = megabytes()
    classifier(groups, alpha).fit(X, y)
    print(
        f"memory: data {X.nbytes / 2**20:.0f} MiB, peak before {before:.0f} MiB, during the path {megabytes():.0f} MiB"
    )


def intrusions(data: Path, alpha: float, repeats: int) -> None:
    """Compare the binomial path with one fit of scikit-learn."""
    folder = data / "kddcup99"
    groups = load_groups(folder / "groups.json")
    X, y = table(folder, "train", "attack", groups)
    test, truth = table(folder, "test", "attack", groups)
    mean, scale = X.mean(axis=0), np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    Z = (X - mean) / scale
    own, theirs, ratios = [], [], []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        other = peer(len(X), alpha).fit(Z, y)
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        model = classifier(groups, alpha).fit(X, y)
        own.append(time.perf_counter() - start)
        ratios.append(own[-1] / theirs[-1])
    print(f"kddcup99, {len(X)} x {X.shape[1]}, {len(groups)} groups, alpha {alpha:g}:")
    print(f"  whole path {statistics.median(own):.1f} s, one LogisticRegression {statistics.median(theirs):.1f} s")
    print(f"  ratio {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")
    found = {"ours": model.predict_proba(test), "scikit-learn": other.predict_proba((test - mean) / scale)}
    for name, likely in found.items():
        accuracy, deviance = float(np.mean(likely.argmax(axis=1) == truth)), 2 * log_loss(truth, likely)
        print(f"  last prefix on the test table, {name}: accuracy {accuracy:.6f}, deviance {deviance:.6f}")


def penalties(repeats: int) -> None:
    """Compare softmax with `alpha="cv"`, every prefix, with `LogisticRegressionCV` on all columns; same penalties."""
    rng = np.random.default_rng(0)
    n, D, classes, size = 5000, 128, 6, 8
    X = rng.standard_normal((n, D))
    X[:, 1:] += 0.5 * X[:, :-1]
    coef = 0.5 * rng.standard_normal((D, classes)) * (rng.random((D, 1)) < 0.4)
    y = (X @ coef + rng.gumbel(size=(n, classes))).argmax(axis=1)
    named = [
        {"name": f"g{g}", "features": [f"x{g * size + j}" for j in range(size)], "cost": 1.0 + g % 4}
        for g in range(D // size)
    ]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    ratios = []
    for _ in range(repeats):
        start = time.perf_counter()
        model = AnytimeClassifier({"groups": named}, alpha="cv", n_jobs=THREADS).fit(X, y)
        own = time.perf_counter() - start
        C = 1 / (0.8 * n * np.array(model.fit_.options.grid))
        start = time.perf_counter()
        LogisticRegressionCV(Cs=np.sort(C), cv=5, max_iter=1000, scoring="neg_log_loss", n_jobs=THREADS).fit(Z, y)
        ratios.append(own / (time.perf_counter() - start))
    print(f"softmax, alpha cv, {n} x {D}, {classes} classes, {len(named)} groups, 20 penalties, 5 folds:")
    print(f"  all prefixes / LogisticRegressionCV {statistics.median(ratios):.2f} (limit 2)")


def digits(data: Path, picture: Path) -> None:
    """Plot error against cost of softmax and of least squares on one-hot classes."""
    folder = data / "mfeat"
    groups = load_groups(folder / "groups.json")
    X, y = table(folder, "train", "digit", groups)
    test, truth = table(folder, "test", "digit", groups)
    axis = (figure := Figure(figsize=(6.5, 4.2), layout="constrained")).subplots()
    drawn: dict[FamilyName, tuple[str, str]] = {
        "multinomial": ("softmax", "-"),
        "gaussian": ("least squares, one-hot", "--"),
    }
    for family, (label, style) in drawn.items():
        start = time.perf_counter()
        model = AnytimeClassifier(groups, alpha="cv", family=family, n_jobs=THREADS).fit(X, y)
        seconds = time.perf_counter() - start
        errors = np.array([np.mean(predicted != truth) for predicted in model.staged_predict(test)])
        print(
            f"mfeat, {label}: {', '.join(model.sequence_)}; test errors {np.round(errors, 4).tolist()}; {seconds:.1f} s"
        )
        costs = model.curve_.costs
        axis.step(costs, errors, where="post", color="black", linestyle=style, label=label)
        axis.plot(costs, errors, "o", color="black", markersize=3)
        for k, name in enumerate(model.sequence_, start=1):
            above = family == "gaussian"
            axis.annotate(name, (costs[k], errors[k]), (3, 6 if above else -11), textcoords="offset points", fontsize=8)
    axis.set(
        xlabel=f"cost ({groups.cost_unit})", ylabel="test error", yscale="log", title="mfeat: 10 classes, 649 columns"
    )
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    figure.savefig(picture, dpi=150)
    print(f"wrote {picture}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--alpha", type=float, default=1e-5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--picture", type=Path, default=Path("mfeat.png"))
    parser.add_argument("--memory-only", action="store_true")
    parser.add_argument("--only", choices=["kddcup99", "mfeat", "penalties"])
    options = parser.parse_args()
    if options.memory_only:
        memory(options.data, options.alpha)
        return
    if options.only in (None, "kddcup99"):
        # First, since a process inherits the peak of its parent.
        command = [
            sys.executable,
            __file__,
            "--memory-only",
            "--data",
            str(options.data),
            "--alpha",
            str(options.alpha),
        ]
        subprocess.run(command, check=True)
        intrusions(options.data, options.alpha, options.repeats)
    if options.only in (None, "mfeat"):
        digits(options.data, options.picture)
    if options.only in (None, "penalties"):
        penalties(options.repeats)


if __name__ == "__main__":
    main()
