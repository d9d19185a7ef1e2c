"""A prediction in the making: any order of arrival gives the batch model's numbers, a refused group changes nothing."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.errors import ValuesError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.families import family_of
from anytime.groups import load_groups
from anytime.inference.prediction import Prediction
from anytime.inference.values import LARGEST, checked_row
from anytime.model.model import Model
from anytime.types import Float
from lazily import Lazy
from models.opening import opened, outputs_of
from models.refusals import assert_refused
from models.unreadable import Unreadable

pytestmark = pytest.mark.usefixtures("linear_by_default")

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "near", "features": ["n0", "n1"], "cost": 0.1},
        {"name": "speed", "features": ["v"], "cost": 0.0},
        {"name": "visit", "features": [], "cost": 2.0},
        {"name": "lab", "features": ["l0", "l1"], "cost": 0.3, "requires": ["visit"]},
        {"name": "scan", "features": ["s0", "s1", "s2"], "cost": 0.7, "requires": ["visit"]},
        {"name": "far", "features": ["f"], "cost": 5.0},
    ],
}
SLICES = dict(zip(load_groups(GROUPS).names, load_groups(GROUPS).slices, strict=True))
NAMES = [group["name"] for group in GROUPS["groups"] if group["features"]]


def table(seed: int = 0, rows: int = 150) -> Float:
    rng = np.random.default_rng(seed)
    X: Float = rng.normal(size=(rows, 9)) * np.array([1, 2, 3, 1, 1, 10, 1, 0.1, 1]) + np.arange(9)
    return X


def trained(responses: int = 1, **options: Any) -> Model:
    X = table()
    rng = np.random.default_rng(1)
    Y = X @ rng.normal(size=(9, responses)) + rng.normal(size=(len(X), responses))
    return AnytimeRegressor(GROUPS, alpha=1e-3, cv=3, **options).fit(X, Y[:, 0] if responses == 1 else Y).model_


def trained_classes(labels: list[Any]) -> Model:
    X = table()
    score = (X - X.mean(axis=0)) @ np.random.default_rng(2).normal(size=9)
    which = np.digitize(score, np.quantile(score, np.linspace(0, 1, len(labels) + 1)[1:-1]))
    return AnytimeClassifier(GROUPS, alpha=1e-3, cv=3).fit(X, np.array(labels)[which]).model_


@cache
def number() -> Model:
    return trained()


WITH_BASES = Lazy({basis: partial(trained, basis=basis) for basis in (None, "hinge:2", "poly:2")})
MODELS: Lazy[str, Model] = Lazy(
    {
        "number": number,
        "vector": partial(trained, 3),
        "binary": partial(trained_classes, [0, 1]),
        "colours": partial(trained_classes, ["blue", "green", "red"]),
    }
)


def arriving(model: Model, x: Float, names: list[str], rows: int = 1) -> Prediction:
    """A prediction to which these groups of x, one row or several, were added in this order."""
    return opened(model, {name: x[..., SLICES[name]] for name in names}, rows)


def added_until(model: Model, k: int) -> list[str]:
    """Groups with features of the first k steps."""
    return [name for step in model.manifest.steps[:k] for name in step.adds if name in NAMES]


def scores(model: Model, x: Float, k: int) -> Float:
    """Responses (rows, P) of prefix k, by a sum over its columns."""
    p = model.prefixes
    coef = p.packed[p.ends[:k].sum() : p.ends[: k + 1].sum()]
    total = np.tile(p.intercept, (len(np.atleast_2d(x)), 1))
    for column, w in zip(p.columns[: p.ends[k]], coef, strict=True):
        total = total + np.outer(np.atleast_2d(x)[:, column] - p.mean[column], w)
    return total


# Prefixes


@pytest.mark.parametrize("name", ["number", "vector"])
def test_step_k_of_a_session_is_prefix_k_of_the_batch(name: str) -> None:
    model, x = MODELS[name], table(7, 1)
    for k in range(model.steps + 1):
        answer = arriving(model, x[0], added_until(model, k)).answer()
        assert answer.prefix == k
        assert answer.prediction == pytest.approx(scores(model, x, k)[0].squeeze().tolist(), rel=1e-12)
        assert np.squeeze(model.prefixes.predict(x, k)).tolist() == pytest.approx(answer.prediction, rel=1e-12)
        assert np.squeeze(model.prefixes.predict_all(x)[k]).tolist() == pytest.approx(answer.prediction, rel=1e-12)


def test_an_answer_tells_what_its_prefix_costs_and_was_worth_in_training() -> None:
    steps = number().manifest.steps
    worth = [
        (0.0, number().manifest.prior_error, 0.0, 0.0),
        *((step.cumulative_cost, step.cv_error, step.explained_variance, step.r2) for step in steps),
    ]
    for k, values in enumerate(worth):
        answer = arriving(number(), table(7, 1)[0], added_until(number(), k)).answer()
        assert (answer.groups, answer.steps) == (tuple(added_until(number(), k)), len(steps))
        expected = answer.expected
        assert (answer.cost, expected.cv_error, expected.explained_variance, expected.r2) == values
    named = replace(number(), manifest=number().manifest.model_copy(update={"name": "brake", "version": "abc"}))
    answer = Prediction(named).answer()
    assert (answer.model, answer.version, answer.reason, answer.policy) == ("brake", "abc", "end", "prefix")
    assert (answer.complete, {*answer.missing}, answer.note, answer.interval) == (False, {*NAMES}, None, None)


def test_the_last_values_of_a_group_count() -> None:
    x, other = table(3, 2)
    prediction = arriving(number(), other, NAMES)
    prediction.add("near", [None, math.nan])
    for name in NAMES:
        prediction.add(name, x[SLICES[name]])
    answer = prediction.answer()
    assert answer.replaced == tuple(added_until(number(), number().steps))
    assert replace(answer, replaced=()) == arriving(number(), x, NAMES).answer()


def test_values_handed_over_may_change_afterwards_and_are_not_changed() -> None:
    values = table(3, 1)[0][SLICES["near"]].copy()
    values[1] = np.nan
    before = values.copy()
    prediction = opened(number(), {"near": values, "speed": [1.0]})
    assert np.array_equal(values, before, equal_nan=True)
    answer = prediction.answer()
    values[:] = 1e6
    assert prediction.answer() == answer


@given(
    arrivals=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=12),
    budget=st.none() | st.floats(0, 10) | st.sampled_from(number().costs.tolist()),
)
def test_any_sequence_of_arrivals_gives_the_longest_complete_prefix(
    arrivals: list[tuple[str, int]], budget: float | None
) -> None:
    rows = table(11, 4)
    prediction, last = Prediction(number()), number().prefixes.mean.copy()
    for name, row in arrivals:
        prediction.add(name, rows[row, SLICES[name]])
        last[SLICES[name]] = rows[row, SLICES[name]]
    received = {name for name, _ in arrivals}
    limit = math.inf if budget is None else budget
    allowed = sum(cost <= limit * (1 + 1e-9) for cost in number().costs[1:])
    prefix = max(k for k in range(allowed + 1) if received.issuperset(added_until(number(), k)))
    answer = prediction.answer(budget)
    assert answer.prefix == prefix
    assert answer.complete == (prefix == allowed)
    assert answer.missing == tuple(name for name in added_until(number(), allowed) if name not in received)
    assert answer.cost == number().costs[prefix]
    assert answer.prediction == pytest.approx(float(scores(number(), last, prefix)[0, 0]), rel=1e-9, abs=1e-9)
    json.dumps(asdict(answer), allow_nan=False)


# Budgets


def test_a_budget_written_in_decimals_pays_for_the_sum_of_its_costs() -> None:
    groups = {"groups": [{"name": f"g{i}", "features": [f"x{i}"], "cost": 0.1} for i in range(10)]}
    X = np.random.default_rng(0).normal(size=(40, 10))
    model = AnytimeRegressor(groups).fit(X, X.sum(axis=1)).model_
    assert [model.affordable(k / 10) for k in range(11)] == list(range(11))
    assert [model.affordable(sum([0.1] * k)) for k in range(11)] == list(range(11))
    assert model.affordable(0.3 - 1e-6) == 2


# Missing values


NUMBER = st.one_of(
    st.floats(-1e3, 1e3), st.integers(-5, 5), st.booleans(), st.none(), st.just("a"), st.just(10**400), st.just(1e200)
)


@pytest.mark.parametrize("basis", [None, "hinge:2", "poly:2"])
@given(
    values=st.dictionaries(
        st.sampled_from([*NAMES, "visit", "unknown"]),
        st.one_of(
            st.integers(1, 3).flatmap(lambda n: st.lists(NUMBER, min_size=n, max_size=n)),
            st.lists(st.floats(-9, 9), min_size=1, max_size=3),
            st.just([[1.0, 2.0]]),
        ),
    )
)
def test_groups_that_are_checked_together_are_those_that_pass_one_by_one(
    basis: str | None, values: dict[str, Any]
) -> None:
    model = WITH_BASES[basis]
    together = checked_row(model, values)
    single, combined = Prediction(model), Prediction(model, None)
    try:
        one_by_one = {name: single.checked(name, each) for name, each in values.items()}
    except ValuesError:
        assert together is None
        return
    complete = all(np.isfinite(array).all() for array in one_by_one.values())
    if together is None:
        assert not values or not complete or any(isinstance(each[0], list) for each in values.values())
        return
    assert list(together) == list(values)
    for name, array in one_by_one.items():
        np.testing.assert_array_equal(together[name], array)
        single.add_checked(name, array)
    for _ in range(2):  # the second time, every group is replaced
        assert combined.more_bytes(together) == single.nbytes - combined.nbytes
        combined.add_all(together)
        assert combined.answer() == single.answer()
        for name, array in one_by_one.items():
            single.add_checked(name, array)


def test_rows_of_many_sets_of_groups_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anytime.model.model.MAX_LAYOUTS", 2)
    row = table(3, 1)[0]
    for names in permutations(NAMES):
        found = checked_row(number(), {name: row[SLICES[name]].tolist() for name in names})
        assert found is not None
        for name in names:
            np.testing.assert_array_equal(found[name][0], row[SLICES[name]])
        cached = [each for each in vars(number()).values() if isinstance(each, dict) and names in each]
        assert [len(each) <= len(NAMES) + 2 for each in cached] == [True]


@pytest.mark.parametrize("null", [None, math.nan, np.nan])
def test_nulls_are_imputed_by_the_training_mean_and_listed(null: float | None) -> None:
    x = table(3, 1)[0]
    values: list[float | None] = x[SLICES["near"]].tolist()
    values[1] = null
    prediction = arriving(number(), x, NAMES)
    prediction.add("near", values)
    filled = x.copy()
    filled[1] = number().prefixes.mean[1]
    assert prediction.answer().imputed == ("n1",)
    assert prediction.answer().prediction == pytest.approx(arriving(number(), filled, NAMES).answer().prediction)


@pytest.mark.parametrize(
    ("arrivals", "imputed"),
    [
        ([np.array([0x7FA00000], "u4").view("f4")], ("v",)),
        ([np.array([0x7FF4000000000000], "u8").view("f8")], ("v",)),
        ([[[None], [1.0], [math.nan]]], ("v",)),
        ([[None], [2.0]], ()),
    ],
    ids=["a signalling nan, f4", "a signalling nan, f8", "once for any rows", "no longer when values come without"],
)
def test_a_column_with_nulls_is_listed(arrivals: list[Any], imputed: tuple[str, ...]) -> None:
    prediction = Prediction(number(), None)
    for values in arrivals:
        prediction.add("speed", values)
    assert prediction.answer().imputed == imputed


def nulls(names: list[str]) -> Prediction:
    """A prediction to which nulls of some groups were added."""
    return opened(number(), {name: [None] * len(np.arange(9)[SLICES[name]]) for name in names})


def test_a_row_of_nulls_predicts_as_the_base_rate() -> None:
    answer = nulls(NAMES).answer()
    assert answer.prediction == pytest.approx(float(number().prefixes.intercept[0]), rel=1e-12)
    assert sorted(answer.imputed) == sorted(number().groups.features)


def test_only_the_nulls_of_the_groups_used_are_listed() -> None:
    order = added_until(number(), number().steps)
    assert nulls(order[:1] + order[2:]).answer().imputed == number().groups.features[SLICES[order[0]]]


# What is refused


def nested(depth: int) -> Any:
    values: Any = [1.0, 2.0]
    for _ in range(depth):
        values = [values]
    return values


class Unfloatable(int):
    def __float__(self) -> float:
        raise TypeError("not exact")


REFUSED: list[tuple[str, str, Any, list[str]]] = [
    ("an unknown group", "naer", [1.0, 2.0], ["no group 'naer'", "did you mean 'near'?"]),
    ("a group without features", "visit", [], ["'visit' has no features", "do not send it"]),
    ("too few values", "near", [1.0], ["'near'", "1 x 1", "expected 1 x 2"]),
    ("too many values", "near", [1.0, 2.0, 3.0], ["'near'", "1 x 3", "expected 1 x 2"]),
    ("no values", "near", [], ["'near'", "expected 1 x 2"]),
    ("two rows", "near", [[1.0, 2.0], [3.0, 4.0]], ["'near'", "2 x 2", "expected 1 x 2"]),
    ("a number for two columns", "near", 3.0, ["'near'", "a single value", "expected 1 x 2"]),
    ("null", "speed", None, ["'speed'", "a single value", "expected 1 x 1"]),
    ("a dict", "near", {"n0": 1.0, "n1": 2.0}, ["'near'", "expected 1 x 2"]),
    ("ragged rows", "near", [[1.0], [2.0, 3.0]], ["'near'", "ragged", "expected 1 x 2"]),
    ("text", "near", "12", ["'near'", "expected 1 x 2"]),
    ("words", "near", ["1", "2"], ["'near'", "'n0' has '1'; expected a number"]),
    ("a word among numbers", "near", [1.0, "2"], ["'near'", "'n1' has '2'; expected a number"]),
    ("a word and null", "near", [None, "2"], ["'near'", "'n1' has '2'; expected a number"]),
    ("bytes", "near", [b"1", b"2"], ["'near'", "'n0' has b'1'; expected a number"]),
    ("complex numbers", "near", [1j, 2.0], ["'near'", "'n0' has 1j; expected a number"]),
    ("a complex number and null", "near", [None, np.complex128(1)], ["'near'", "'n1' has (1+0j); expected a number"]),
    ("a number that is no float", "near", [None, Unfloatable()], ["'near'", "not all numbers", "expected 1 x 2"]),
    (
        "what is no array",
        "near",
        Unreadable(),
        ["'near'", "are not an array (RuntimeError: not without a gradient)", "expected 1 x 2"],
    ),
    (
        "dates",
        "near",
        np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]"),
        ["'near'", "datetime.date", "expected a number"],
    ),
    ("objects", "near", [object(), None], ["'near'", "'n0' has <object", "expected a number"]),
    ("infinity", "near", [1.0, math.inf], ["'near'", "infinite or beyond 1e+100 in 'n1'"]),
    ("minus infinity and null", "near", [-math.inf, None], ["'near'", "infinite or beyond 1e+100 in 'n0'"]),
    ("an integer too large for a float", "near", [10**400, 1], ["'near'", "too large"]),
    ("three brackets", "near", nested(2), ["'near'", "nested too deeply", "expected 1 x 2"]),
    ("a hundred brackets", "near", nested(100), ["'near'", "expected 1 x 2"]),
    ("a hundred thousand brackets", "near", nested(100_000), ["'near'", "expected 1 x 2"]),
]


@pytest.mark.parametrize(("group", "values", "words"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_refused_group_is_one_line_and_changes_nothing(group: str, values: Any, words: list[str]) -> None:
    x = table(3, 1)[0]
    for names in ([], NAMES):
        prediction = arriving(number(), x, names)
        before = prediction.answer(), prediction.answer(policy="arrived"), prediction.received
        assert len(assert_refused(partial(prediction.add, group, values), *words, error=ValuesError)) < 300
        assert (prediction.answer(), prediction.answer(policy="arrived"), prediction.received) == before


def test_a_long_double_that_no_float_can_hold_is_refused() -> None:
    if np.finfo(np.longdouble).max == np.finfo(np.float64).max:
        pytest.skip("no longer doubles here")
    with pytest.raises(ValuesError, match=r"infinite|too large"):
        Prediction(number()).add("near", np.array([1e300, 1.0], dtype=np.longdouble) ** 2)


@pytest.mark.parametrize(
    "values",
    [[1, 0], [True, False], [True, 0.0], np.array([1, 0], dtype="u1"), np.array([1, 0], dtype="f4"), (1, 0)],
    ids=repr,
)
def test_numbers_of_every_kind_are_taken_for_what_they_are(values: Any) -> None:
    exact = opened(number(), {"near": [1.0, 0.0], "speed": [2.0]})
    assert opened(number(), {"near": values, "speed": np.array([[2]])}).answer().prediction == exact.answer().prediction


def test_an_integer_beyond_64_bits_is_a_number() -> None:
    assert opened(number(), {"near": [2**80, None]}).received == ("near",)


@pytest.mark.parametrize("cell", [(0, 0), (4_000, 1), (19_999, 1)], ids=str)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -1e200, 1.5])
def test_values_that_are_not_aligned_are_those_of_an_aligned_array(cell: tuple[int, int], value: float | None) -> None:
    values = table(1, 20_000)[:, :2].copy()
    values[cell] = np.nan if value is None else value
    odd = np.frombuffer(b"x" + values.tobytes(), np.float64, values.size, offset=1).reshape(values.shape)
    assert not odd.flags.aligned
    results: list[Any] = []
    for each in (values, odd):
        prediction = Prediction(number(), None)
        try:
            prediction.add("near", each)
        except ValuesError as error:
            results.append(str(error))
        else:
            results.append((np.array(prediction.answer().prediction).tobytes(), prediction.answer().missing))
    assert results[0] == results[1]
    assert isinstance(results[0], str) == (value in (math.inf, -1e200))


@pytest.mark.parametrize(
    ("name", "rows", "options", "why"),
    [
        *(("number", 1, {"budget": budget}, "budget") for budget in (-1, -1e-300, math.nan, -math.inf, "40")),
        ("number", 1, {"policy": "worst"}, "expected one of prefix, best, arrived"),
        *(("number", rows, {}, "rows is") for rows in (0, -1, 1.5, True, "2")),
        ("colours", 2, {"ranking": True}, "ranking requires one score per row"),
    ],
    ids=str,
)
def test_an_answer_that_cannot_be_is_refused(name: str, rows: Any, options: dict[str, Any], why: str) -> None:
    assert_refused(lambda: Prediction(MODELS[name], rows).answer(**options), why, error=ValuesError)


# Rows


@pytest.mark.parametrize("name", MODELS)
def test_many_rows_are_answered_as_one_row_each(name: str) -> None:
    model = MODELS[name]
    X = table(5, 6)
    for k in range(model.steps + 1):
        names = added_until(model, k)
        together = arriving(model, X, names, rows=6).answer()
        assert isinstance(together.prediction, list)
        for row, x in enumerate(X):
            alone = arriving(model, x, names).answer()
            assert outputs_of(together)[row] == pytest.approx(outputs_of(alone).squeeze(), rel=1e-12)
            assert model.manifest.classes is None or together.prediction[row] == alone.prediction
            assert (together.prefix, together.cost) == (alone.prefix, alone.cost)


def test_rows_that_are_not_told_are_counted_in_the_first_values() -> None:
    X = table(5, 6)
    counted, reported = Prediction(number(), None), arriving(number(), X, NAMES, rows=6)
    assert counted.rows == 1
    assert counted.answer().prediction == Prediction(number()).answer().prediction
    assert_refused(lambda: counted.add("near", [1.0, 2.0, 3.0]), "expected 1 x 2", error=ValuesError)
    assert counted.rows == 1
    for name in NAMES:
        counted.add(name, X[:, SLICES[name]])
    assert counted.answer() == reported.answer()
    assert_refused(lambda: counted.add("speed", [1.0]), "expected 6 x 1", error=ValuesError)


def test_an_answer_before_the_rows_were_known_leaves_no_trace_in_the_next() -> None:
    scan = np.zeros((3, 3))  # ahead of its turn: the prefix is the same before and after it
    reported, counted = Prediction(number(), None), Prediction(number(), None)
    assert all(isinstance(each.answer().prediction, float) for each in (reported, counted))
    reported.expect_rows(3)
    counted.add("scan", scan)
    assert len(reported.answer().prediction) == len(counted.answer().prediction) == 3


def test_scores_made_ready_before_are_those_of_the_answer() -> None:
    x, other = table(3, 2)
    ready, plain = Prediction(number()), Prediction(number())
    for name in (*NAMES, NAMES[0]):
        for prediction in (ready, plain):
            prediction.add(name, (other if name == NAMES[0] else x)[SLICES[name]])
        ready.prepare()
        ready.prepare(budget=1.0)
        assert (ready.answer(), ready.answer(budget=1.0)) == (plain.answer(), plain.answer(budget=1.0))


@pytest.mark.parametrize("name", ["number", "binary"])
def test_a_ranking_lists_the_rows_by_descending_score_ties_in_their_order(name: str) -> None:
    model, X = MODELS[name], np.repeat(table(5, 6), 2, axis=0)
    answer = arriving(model, X, NAMES, rows=12).answer(ranking=True)
    score = scores(model, X, model.steps)[:, 0]
    assert answer.ranking is not None
    assert sorted(answer.ranking) == list(range(12))
    assert answer.ranking == sorted(range(12), key=lambda row: (-round(float(score[row]), 9), row))
    assert arriving(model, X, NAMES, rows=12).answer().ranking is None
    assert Prediction(model, 3).answer(ranking=True).ranking == [0, 1, 2]


# Classes


def test_probabilities_are_clipped_estimates_scaled_to_one() -> None:
    squares = family_of("gaussian")
    assert squares.probabilities(np.array([[-0.5], [0.25], [1.5]])).tolist() == [[1, 0], [0.75, 0.25], [0, 1]]
    assert squares.probabilities(np.array([[-1.0, 0.5, 1.5], [0.2, 0.3, 0.5]])).tolist() == [
        [0, 0.25, 0.75],
        [0.2, 0.3, 0.5],
    ]
    assert squares.probabilities(np.array([[-1.0, -2.0]])).tolist() == [[0.5, 0.5]]


# JSON


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("policy", ["prefix", "arrived"])
def test_every_field_of_an_answer_is_json(name: str, rows: int, policy: Any) -> None:
    model = MODELS[name]
    x = table(3, rows)
    for names in ([], NAMES[2:], NAMES):
        answer = arriving(model, x, names, rows).answer(
            1.5, policy, reason="deadline", elapsed_ms=3.5, late_groups=["far"]
        )
        reported = json.loads(json.dumps(asdict(answer), allow_nan=False))
        assert (reported["reason"], reported["elapsed_ms"], reported["late_groups"]) == ("deadline", 3.5, ["far"])
        assert reported["prediction"] == answer.prediction


@pytest.mark.parametrize(
    ("budget", "reported"),
    [(math.inf, None), (np.float32(1.5), 1.5), (np.int64(2), 2.0), (np.float64(2.0), 2.0), (7, 7.0), (10**400, None)],
    ids=repr,
)
def test_an_answer_is_json_whatever_number_the_budget_was(budget: Any, reported: float | None) -> None:
    answer = arriving(number(), table(3, 1)[0], NAMES).answer(budget)
    assert json.loads(json.dumps(asdict(answer), allow_nan=False))["budget"] == reported


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["prefix", "arrived"])
def test_the_largest_values_are_answered_by_json_and_larger_ones_refused(name: str, policy: Any) -> None:
    largest = LARGEST * np.array([1.0, -1, 1, 1, -1, 1, -1, 1, 1])
    answer = arriving(MODELS[name], largest, NAMES).answer(policy=policy)
    assert json.loads(json.dumps(asdict(answer), allow_nan=False))["prediction"] == answer.prediction
    assert np.isfinite(outputs_of(answer)).all()
    for group in NAMES:
        assert_refused(
            partial(arriving, MODELS[name], np.nextafter(largest, 2 * largest), [group]),
            "infinite or beyond 1e+100",
            error=ValuesError,
        )


# The cost of all rows together.

CALLS: dict[str, Any] = {
    "cost_unit": "ms",
    "rows": 10,
    "groups": [
        {"name": "near", "features": ["n0", "n1"], "cost": 0.1},
        {"name": "speed", "features": ["v"], "cost": {"fixed": 3.0}},
        {"name": "visit", "features": [], "cost": {"fixed": 2.0, "per_row": 0.01}},
        {"name": "lab", "features": ["l0", "l1"], "cost": {"fixed": 1.0, "per_row": 0.2}, "requires": ["visit"]},
        {"name": "scan", "features": ["s0", "s1", "s2"], "cost": 0.7, "requires": ["visit"]},
        {"name": "far", "features": ["f"], "cost": {"fixed": 5.0, "per_row": 0.0}},
    ],
}


def literal_cost(content: dict[str, Any], used: tuple[str, ...], rows: int) -> float:
    """The cost of some groups and of all that they require, each once."""
    by_name = {each["name"]: each for each in content["groups"]}
    paid = {*used, *(name for each in used for name in by_name[each].get("requires", ()))}
    costs = (by_name[name]["cost"] for name in paid)
    parts = (each if isinstance(each, dict) else {"per_row": each} for each in costs)
    return float(sum(each.get("fixed", 0.0) + each.get("per_row", 0.0) * rows for each in parts))


@pytest.mark.parametrize("content", [GROUPS, CALLS], ids=["per row", "of a call"])
@pytest.mark.parametrize("rows", [1, 10, 37])
@pytest.mark.parametrize("options", [{}, {"pairs": 3}, {"basis": "hinge:2"}], ids=str)
def test_the_total_cost_is_that_of_the_groups_used_for_all_rows(
    content: dict[str, Any], rows: int, options: dict[str, Any]
) -> None:
    X = table()
    y = X @ np.random.default_rng(1).normal(size=9)
    model = AnytimeRegressor(content, alpha=1e-3, cv=3, **options).fit(X, y).model_
    x = table(5, rows)
    for policy in ("prefix", "arrived"):
        prediction = Prediction(model, rows)
        assert prediction.answer(policy=policy).cost_total == 0.0
        for name in ("far", "scan", "near", "lab", "speed"):
            prediction.add(name, x[:, SLICES[name]])
            answer = prediction.answer(policy=policy)
            assert answer.policy == policy
            if policy == "arrived":
                assert answer.cost_total == pytest.approx(literal_cost(content, answer.groups, rows))
            if rows == content.get("rows", 1):
                assert answer.cost_total == pytest.approx(rows * answer.cost)
        assert prediction.answer().cost_total == pytest.approx(literal_cost(content, tuple(NAMES), rows))
    for prefix, (used, spent) in enumerate(zip(model.computed, model.prefix_costs, strict=True)):
        paid = {name for step in model.manifest.steps[:prefix] for name in step.adds}
        assert spent.of_call(rows) == pytest.approx(literal_cost(content, tuple(paid), rows))
        assert set(used) <= paid


def test_a_budget_is_per_row_in_calls_of_the_models_rows() -> None:
    X = table()
    model = AnytimeRegressor(CALLS, alpha=1e-3, cv=3).fit(X, X.sum(axis=1)).model_
    assert model.costs == pytest.approx([each.of_call(10) / 10 for each in model.prefix_costs])
    for rows in (1, 50):
        prediction = arriving(model, table(5, rows), NAMES, rows)
        for prefix, cost in enumerate(model.costs.tolist()):
            assert prediction.answer(cost).prefix >= prefix, "whatever the number of rows"
