"""An error names what an extractor returned, if it is unusable; with threads and with processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anytime.inference.runner import Runner
from anytime.inference.workers import Worker
from models.inference.extracting import awaiting, forgetting, generating, naming, streaming, unordered, zero
from models.inference.test_runner import LONG_MS, WORKERS, X, a_model, extractors

UNUSABLE: list[tuple[Callable[[Any], Any], str]] = [
    (awaiting, "its extractor is async and returned a coroutine; expected a function that returns values"),
    (streaming, "its extractor is async and returned a async_generator"),
    (forgetting, "its extractor returned None (is a return missing?); expected an array or lists of values"),
    (generating, "its extractor returned a generator; expected an array or lists of values"),
    (naming, "its extractor returned a dict; expected"),
    (unordered, "its extractor returned a set; expected"),
]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_result_that_is_not_values_is_named(worker: Worker) -> None:
    for extractor, why in UNUSABLE if worker == "thread" else UNUSABLE[::2]:
        with Runner(a_model(moments=True), extractors(b=extractor), worker, max_workers=1) as runner:
            answer = runner.run(X, LONG_MS)
            assert f"group 'b' failed: {why}" in (answer.note or "")
            assert answer.groups == ("a", "c"), "the other groups count"
            assert runner.failures[-1].group == "b"


def test_a_group_without_features_may_return_anything() -> None:
    for result in (None, {"a": 1}, iter([1.0])):
        shared: dict[str, Any] = {"visit": lambda _, result=result: result, "b": lambda x, _: zero(x)}
        with Runner(a_model(), extractors(**shared)) as runner:
            assert runner.run(X, LONG_MS).complete
