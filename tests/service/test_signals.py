"""What the service measures of itself."""

from __future__ import annotations

from dataclasses import replace

from anytime_service.signals import Signals
from service.serving import Running, small_model, trained_model


def test_what_is_measured_is_told_to_prometheus(service: Running) -> None:
    service.post({"groups": {}})
    response = service.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in (
        "anytime_predictions_total",
        "anytime_deadline_lateness_seconds",
        "anytime_prefix",
        "anytime_groups_late_total",
        "anytime_deadline_margin_seconds",
        "anytime_open_predictions",
    ):
        assert f"\n# HELP {name} " in "\n" + response.text


def test_the_margin_follows_the_lateness_of_the_answers_before_and_is_at_most_1_ms() -> None:
    model = small_model()
    signals = Signals().of(model)
    answer = model.open().answer(reason="deadline")
    begun = signals.margin_ms
    signals.answered(replace(answer, reason="end"), None)
    assert signals.margin_ms == begun, "answers that no deadline brought tell nothing"
    for _ in range(200):
        signals.answered(answer, 5.0)
    assert begun < signals.margin_ms <= 1.0
    for _ in range(20_000):
        signals.answered(answer, -5.0)
    assert signals.margin_ms == 0.0


def test_versions_of_a_model_share_their_measures_and_models_do_not() -> None:
    signals = Signals()
    model = small_model()
    newer = replace(model, manifest=model.manifest.model_copy(update={"version": "v2"}))
    assert signals.of(model) is signals.of(newer)
    assert signals.of(model) is not signals.of(trained_model())


def test_each_service_measures_for_itself() -> None:
    first, second = Signals(), Signals()
    first.of(small_model()).dropped(3)
    told = b'anytime_groups_late_total{model="brake"} 3.0'
    assert told in first.exposition()
    assert told not in second.exposition()
