"""A calibrated model: every prefix covers as often as asked, whichever way it answers, and a file keeps that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.errors import AnytimeError, ArtifactError, TrainingError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation.calibrate import calibrate, held_out
from anytime.evaluation.evaluate import evaluate
from anytime.families import family_of
from anytime.inference.conformal import confidence, conformal_level, conformal_rank, expected_calibration_error
from anytime.inference.prediction import Answer, Prediction
from anytime.loaded import load
from anytime.model.manifest import Calibration
from anytime.model.model import Model
from anytime.target import class_codes
from anytime.types import Float
from lazily import Lazy
from models.model.test_file import with_manifest
from models.opening import by_group, opened as opened_by_group
from models.present import present
from models.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("linear_by_default")


@dataclass(frozen=True, eq=False)
class Problem:
    """A model trained on a part of a real table, and the other rows, in no order."""

    model: Model
    targets: list[str]
    others: pd.DataFrame
    continuous: bool = False
    """Whether no two scores tie, so that what is promised is exact."""

    def table(self, folder: Path, part: slice, name: str = "held.parquet") -> Any:
        self.others[part].to_parquet(folder / name)
        return open_table(folder / name)

    def changed(self, folder: Path, **columns: Any) -> Any:
        """The rows to calibrate on, with other columns."""
        self.others[HELD].assign(**columns).to_parquet(folder / "changed.parquet")
        return open_table(folder / "changed.parquet")

    def calibrated(self, folder: Path, part: slice, coverage: float = 0.9) -> Model:
        return calibrate(self.model, self.table(folder, part), coverage)

    def values(self, part: slice) -> Float:
        """Features (rows, D) in the order of the groups."""
        return np.array(self.others[part][list(self.model.groups.features)], dtype=np.float64)

    def truths(self, part: slice) -> Float:
        """Responses (rows, P), or labels (rows, 1)."""
        return np.array(self.others[part][self.targets])


def problem(frame: pd.DataFrame, targets: list[str], sizes: list[int], estimator: Any, rows: int) -> Problem:
    """Train on the first rows of a shuffled table; sizes are those of its groups, one after the other."""
    frame = frame.sample(frac=1.0, random_state=3).reset_index(drop=True)
    features = [name for name in frame.columns if name not in targets]
    ends = np.cumsum([0, *sizes])
    assert ends[-1] == len(features)
    names = [features[start:stop] for start, stop in pairwise(ends)]
    groups = [{"name": f"g{i}", "features": each, "cost": 1.0 + i} for i, each in enumerate(names)]
    estimator.set_params(groups={"cost_unit": "ms", "groups": groups})
    y = frame[targets[0]] if len(targets) == 1 else frame[targets]
    model = estimator.fit(frame[:rows], y[:rows]).model_
    noisy = model.manifest.classes is None and model.manifest.family == "gaussian"
    return Problem(model, targets, frame[rows:].reset_index(drop=True), continuous=noisy)


def diabetes() -> pd.DataFrame:
    return pd.DataFrame(load_diabetes(as_frame=True, scaled=False).frame)


def cancer() -> pd.DataFrame:
    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame.rename(columns=lambda name: name.replace(" ", "_"))
    frame["target"] = np.where(frame["target"] == 1, "benign", "malignant")
    return frame


def digits() -> pd.DataFrame:
    X, y = load_digits(return_X_y=True)
    frame = pd.DataFrame(X, columns=[f"p{j}" for j in range(64)])
    frame["digit"] = y
    return frame


def dithered(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Whole numbers plus a fraction of one, so that all differ."""
    rng = np.random.default_rng(11)
    for name in columns:
        frame[name] = frame[name] + rng.uniform(-0.5, 0.5, len(frame))
    return frame


PROBLEMS: Mapping[str, Problem] = Lazy(
    {
        "number": lambda: problem(
            dithered(diabetes(), "target"), ["target"], [2, 1, 1, 4, 2], AnytimeRegressor(alpha="cv"), 180
        ),
        "vector": lambda: problem(
            dithered(diabetes(), "target", "bp", "s6"), ["target", "bp", "s6"], [2, 1, 4, 1], AnytimeRegressor(), 180
        ),
        "count": lambda: problem(
            diabetes(), ["target"], [2, 1, 1, 4, 2], AnytimeRegressor(family="poisson", alpha=0.01), 180
        ),
        "binary": lambda: problem(cancer(), ["target"], [10, 10, 10], AnytimeClassifier(alpha=0.05), 180),
        "digits": lambda: problem(digits(), ["digit"], [16] * 4, AnytimeClassifier(alpha=0.05), 600),
        "squares": lambda: problem(digits(), ["digit"], [16] * 4, AnytimeClassifier(family="gaussian"), 600),
    }
)
HELD, NEW = slice(0, 130), slice(130, None)


@pytest.fixture(params=PROBLEMS)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a problem; each of them, unless a test names its own."""
    return str(request.param)


@pytest.fixture
def given(name: str) -> Problem:
    return PROBLEMS[name]


@pytest.fixture
def model(given: Problem, tmp_path: Path) -> Model:
    """The model of the problem, calibrated."""
    return given.calibrated(tmp_path, HELD)


number = pytest.mark.parametrize("name", ["number"])


def opened(model: Model, X: Float, prefix: int) -> Prediction:
    """A prediction about one row (D,) or several (rows, D), with the groups of a prefix."""
    values = by_group(model.groups, X)
    return opened_by_group(model, {name: values[name] for name in model.computed[prefix]}, len(np.atleast_2d(X)))


def interval(answer: Answer) -> Float:
    """The interval of an answer, which must have one."""
    return np.array(present(answer.interval))


def covers(answer: Answer, truth: Any) -> bool:
    """Whether the answer about one row holds the truth (P,) of it."""
    if answer.prediction_set is not None:
        return truth[0] in answer.prediction_set
    ends = interval(answer).reshape(len(truth), 2)
    return bool(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).all())


def the_calibration(model: Model) -> Calibration:
    return present(model.manifest.calibration)


# Thresholds


@pytest.mark.parametrize("coverage", [0.9, 0.8])
def test_thresholds_are_order_statistics_of_answers_row_by_row(
    name: str, given: Problem, coverage: float, tmp_path: Path
) -> None:
    model, part = given.model, slice(0, 40)
    found = the_calibration(given.calibrated(tmp_path, part, coverage))
    classes = model.manifest.classes
    for prefix in range(model.steps + 1):
        scores = []
        for x, truth in zip(given.values(part), given.truths(part), strict=True):
            answer = opened(model, x, prefix).answer()
            if classes is not None:
                scores.append(1 - answer.probabilities[classes.index(truth[0])])
                continue
            far = np.abs(truth - np.ravel(answer.prediction))
            spread = np.sqrt(answer.prediction) if name == "count" else model.prefixes.response_scale
            scores.append(float((far / spread).max()))
        rank = int(np.ceil(41 * coverage - 1e-9))
        assert found.thresholds[prefix] == pytest.approx(sorted(scores)[rank - 1], rel=1e-9, abs=1e-12)
    assert (found.coverage, found.rows, found.data) == (coverage, 40, "held.parquet")
    assert found.level == conformal_level(40, coverage)
    assert (found.reliability is None) == (classes is None)


def test_of_the_rows_of_calibration_as_many_are_covered_as_the_rank_says(given: Problem, tmp_path: Path) -> None:
    # Answered one by one, and not as calibrated: rounding must not cast out rows at the threshold, nor those that tie.
    part = slice(0, 60)
    model = given.calibrated(tmp_path, part)
    rows = list(zip(given.values(part), given.truths(part), strict=True))
    for prefix in range(model.steps + 1):
        count = sum(covers(opened(model, x, prefix).answer(), truth) for x, truth in rows)
        assert count >= conformal_rank(60, 0.9)
        if given.continuous:
            assert count == conformal_rank(60, 0.9)


def test_new_rows_are_covered_about_as_often_as_asked(given: Problem, model: Model, tmp_path: Path) -> None:
    found = evaluate(model, given.table(tmp_path, NEW, "new.parquet"))
    coverage = present(found.coverage)
    # Given the table of calibration, the share that is covered is Beta(rank, rows + 1 - rank).
    rank = conformal_rank(130, 0.9)
    law = betabinom(found.rows, rank, 131 - rank)
    covered = np.rint(coverage * found.rows)
    assert covered == pytest.approx(coverage * found.rows)
    assert (law.cdf(covered) > 1e-4).all()
    if given.continuous:
        assert (law.sf(covered - 1) > 1e-4).all()
    answers = [[opened(model, x, prefix).answer() for x in given.values(NEW)[:25]] for prefix in range(model.steps + 1)]
    shares = [sum(map(covers, each, given.truths(NEW)[:25])) / 25 for each in answers]
    assert present(evaluate(model, given.table(tmp_path, slice(130, 155), "few.parquet")).coverage).tolist() == shares


def test_sizes_are_what_evaluating_the_same_rows_tells(given: Problem, model: Model, tmp_path: Path) -> None:
    found = present(evaluate(model, given.table(tmp_path, HELD)).size)
    assert found.tolist() == list(the_calibration(model).sizes)
    answers = [opened(model, x, model.steps).answer() for x in given.values(HELD)]
    sizes = [np.diff(interval(a)).mean() if a.prediction_set is None else len(a.prediction_set) for a in answers]
    assert found[-1] == pytest.approx(np.mean(sizes), rel=1e-9)
    # What a better prefix buys is a smaller answer.
    assert found[-1] < 0.95 * found[0]


@pytest.mark.parametrize("name", ["binary", "digits", "squares"])
def test_reliability_is_the_calibration_error_of_each_prefix(given: Problem, tmp_path: Path) -> None:
    model, X = given.model, given.values(HELD)
    (rows,) = held_out(model, given.table(tmp_path, HELD))[0].rows()
    found = the_calibration(given.calibrated(tmp_path, HELD)).reliability
    likely = map(family_of(model.manifest.family).probabilities, model.prefixes.predict_all(X))
    expected = [expected_calibration_error(*confidence(each, class_codes(rows.Y))) for each in likely]
    assert found == pytest.approx(expected, abs=1e-9)


@number
def test_an_uncalibrated_model_has_no_coverage(given: Problem, tmp_path: Path) -> None:
    found = evaluate(given.model, given.table(tmp_path, HELD))
    answer = opened(given.model, given.values(NEW)[0], 1).answer()
    assert (found.coverage, found.size, answer.interval, answer.prediction_set) == (None,) * 4


@pytest.mark.parametrize("batch", [7, 64])
def test_a_table_in_batches_calibrates_as_a_whole_one(
    given: Problem, model: Model, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = the_calibration(model)
    rows = Dataset.rows
    monkeypatch.setattr(Dataset, "rows", lambda dataset, _most: rows(dataset, batch))
    parts = the_calibration(given.calibrated(tmp_path, HELD))
    assert parts.thresholds == pytest.approx(whole.thresholds, rel=1e-9)
    assert parts.sizes == pytest.approx(whole.sizes, rel=1e-9)
    others = {"thresholds", "sizes", "reliability"}
    assert parts.model_dump(exclude=others) == whole.model_dump(exclude=others)


@number
def test_calibrating_changes_nothing_else_and_not_the_model_given(given: Problem, tmp_path: Path) -> None:
    model = given.model
    before = model.manifest.model_dump_json()
    found = given.calibrated(tmp_path, HELD)
    assert model.manifest.model_dump_json() == before
    assert found.prefixes is model.prefixes
    assert found.moments is model.moments
    assert found.manifest.model_copy(update={"calibration": None}) == model.manifest
    again = calibrate(found.save(tmp_path / "m.safetensors"), given.table(tmp_path, NEW), 0.5)
    assert (the_calibration(again).coverage, again.version) == (0.5, ""), "no file has it yet"


# Answers


def test_answers_are_predictions_with_the_thresholds_of_their_prefixes(name: str, given: Problem, model: Model) -> None:
    p, X = model.prefixes, given.values(NEW)[:6]
    for prefix, threshold in enumerate(the_calibration(model).thresholds):
        scores = p.predict(X, prefix)
        answers = [opened(model, x, prefix).answer() for x in X]
        classes = model.manifest.classes
        if classes is not None:
            likely = family_of(model.manifest.family).probabilities(scores)
            enough = [[1 - share <= threshold + 1e-12 for share in row] for row in likely.tolist()]
            assert [answer.prediction_set for answer in answers] == [list(compress(classes, row)) for row in enough]
            assert {answer.interval for answer in answers} == {None}
            continue
        means = family_of(model.manifest.family).mean(scores)
        half = threshold * (np.sqrt(means) if name == "count" else p.response_scale)
        ends = np.stack([means - half, means + half], axis=-1)
        ends = np.maximum(ends, 0.0) if name == "count" else ends
        expected = ends if name == "vector" else ends[:, 0]
        assert np.array([answer.interval for answer in answers]) == pytest.approx(expected, rel=1e-9, abs=1e-7)
        assert {answer.prediction_set for answer in answers} == {None}


@pytest.mark.parametrize("name", ["count"])
def test_counts_are_never_told_to_be_negative(given: Problem, tmp_path: Path) -> None:
    model = given.calibrated(tmp_path, slice(0, 60), 0.95)
    assert min(interval(opened(model, x, model.steps).answer())[0] for x in given.values(slice(None))) == 0.0


def test_many_rows_are_answered_as_one_row_each(name: str, given: Problem, model: Model) -> None:
    X = given.values(NEW)[:20]
    for prefix in (0, 1, model.steps):
        together = opened(model, X, prefix).answer()
        each = [opened(model, x, prefix).answer() for x in X]
        reported = [together.interval, together.prediction_set]
        assert json.loads(json.dumps(reported)) == reported
        if model.manifest.classes is not None:
            assert reported == [None, [answer.prediction_set for answer in each]]
        else:
            shape = (3, 2) if name == "vector" else (2,)
            assert {interval(answer).shape for answer in each} == {shape}
            assert interval(together).shape == (20, *shape)
            assert interval(together) == pytest.approx(np.array([answer.interval for answer in each]), rel=1e-9)


@pytest.mark.parametrize("name", ["number", "vector", "count", "binary", "squares"])
def test_whatever_arrived_has_the_interval_of_a_prefix_if_it_is_one_and_none_otherwise(
    given: Problem, model: Model
) -> None:
    x = given.values(NEW)[0]
    for prefix in range(model.steps + 1):
        prediction = opened(model, x, prefix)
        one, other = prediction.answer(), prediction.answer(policy="arrived")
        assert other.policy == "arrived"
        assert (other.interval, other.prediction_set) == (one.interval, one.prediction_set)
    second = {name: each for name, each in by_group(model.groups, x).items() if name in model.manifest.steps[1].adds}
    prediction = opened_by_group(model, second)  # groups that are no prefix
    answer = prediction.answer(policy="arrived")
    assert answer.groups == tuple(second)
    assert (answer.interval, answer.prediction_set) == (None, None)
    # As does the prefix that answers in its place.
    base = prediction.answer(policy="prefix")
    assert (base.interval, base.prediction_set) != (None, None)
    stood_in = prediction.answer(policy="arrived", solve=lambda *_: None)
    assert stood_in.note is not None
    assert (stood_in.interval, stood_in.prediction_set) == (base.interval, base.prediction_set)


# Files


def damaged(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the calibration in a file."""
    path.write_bytes(with_manifest(lambda manifest: change(manifest["calibration"]))(path.read_bytes()))


def narrower(found: dict[str, Any]) -> None:
    found["thresholds"][1] *= 0.5


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("number", narrower, "changed after it was written"),
        ("number", lambda found: found.update(coverage=0.5), "changed after it was written"),
        ("number", lambda found: found.update(data="other.csv"), "changed after it was written"),
        (
            "number",
            lambda found: found.update({part: found[part][:-1] for part in ("thresholds", "sizes")}),
            "is calibrated for 5 prefixes and has 6",
        ),
        (
            "number",
            lambda found: found.update(reliability=[0.0] * 6),
            "a calibration that does not fit regression or counts",
        ),
        ("binary", lambda found: found.update(reliability=None), "does not fit classes"),
        ("number", lambda found: found["thresholds"].pop(), "6 sizes; expected one for each of 5 thresholds"),
        ("number", lambda found: found.update(level=0.1), "level is 0.1"),
        ("number", lambda found: found["thresholds"].__setitem__(1, -1.0), "calibration.thresholds.1"),
        ("number", lambda found: found["thresholds"].__setitem__(1, float("nan")), "calibration.thresholds.1"),
        ("number", lambda found: found.update(kind="split"), "calibration.kind"),
    ],
)
def test_a_calibration_that_was_tampered_with_is_refused(
    model: Model, change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    model.save(path)
    damaged(path, change)
    assert_refused(lambda: load(path), words, error=ArtifactError)


# What is wrong


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("number", lambda frame: frame.drop(columns="bmi"), "lacks 'bmi'"),
        ("number", lambda frame: frame.drop(columns="target"), "no column 'target'"),
        ("number", lambda frame: frame.assign(target=frame["target"].where(frame.index != 4)), "1 of 130 rows"),
        ("number", lambda frame: frame.assign(target=np.inf), "infinite values, the first in row 0"),
        ("number", lambda frame: frame.assign(bmi="much"), "'bmi'"),
        ("count", lambda frame: frame.assign(target=-frame["target"]), "in row 0; expected counts, 0 or more"),
        ("binary", lambda frame: frame.assign(target="unclear"), "'unclear' was never seen in training"),
        ("digits", lambda frame: frame.assign(digit=11), "11 was never seen in training"),
    ],
)
def test_what_evaluate_refuses_calibrate_refuses_in_the_same_words(
    given: Problem, change: Callable[[pd.DataFrame], pd.DataFrame], words: str, tmp_path: Path
) -> None:
    change(given.others[HELD]).to_parquet(tmp_path / "held.parquet")
    calls = (partial(work, given.model, open_table(tmp_path / "held.parquet")) for work in (calibrate, evaluate))
    one, other = (assert_refused(call, words, error=AnytimeError) for call in calls)
    assert one == other


@number
def test_rows_without_a_target_may_be_left_out(given: Problem, tmp_path: Path) -> None:
    gaps = given.changed(tmp_path, target=lambda frame: frame["target"].where(frame.index >= 30))
    found = the_calibration(calibrate(given.model, gaps, drop_missing=True))
    assert found.rows == 100
    assert found.thresholds == the_calibration(given.calibrated(tmp_path, slice(30, 130))).thresholds


@number
def test_too_few_rows_are_refused_before_the_features_are_read(
    given: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = given.table(tmp_path, slice(0, 18))
    monkeypatch.setattr(Dataset, "rows", lambda *_: pytest.fail("features were read"))
    for coverage, said in (
        (0.95, "18 rows are too few to calibrate a coverage of 0.95; expected 19"),
        (90, "coverage is 90"),
    ):
        assert_refused(partial(calibrate, given.model, table, coverage), said, error=TrainingError)


def test_an_absurd_row_is_the_farthest_and_leaves_everything_finite(given: Problem, tmp_path: Path) -> None:
    held = given.others[HELD]
    absurd = {each: held[each].astype(np.float64).where(held.index != 5, 1e300) for each in given.model.groups.features}
    found = the_calibration(calibrate(given.model, given.changed(tmp_path, **absurd)))
    assert np.isfinite([*found.thresholds, *found.sizes, *(found.reliability or ())]).all()
    assert min(found.thresholds) >= 0


@number
def test_many_absurd_rows_are_refused_in_words(given: Problem, tmp_path: Path) -> None:
    held = given.others[HELD]
    prefixes = given.model.prefixes
    absurd = given.changed(tmp_path, **{name: held[name].where(held.index > 40, 1e308) for name in ("bmi", "s5")})
    model = replace(given.model, prefixes=replace(prefixes, packed=prefixes.packed * 1e3))
    assert_refused(lambda: calibrate(model, absurd), "have no finite score", error=TrainingError)
