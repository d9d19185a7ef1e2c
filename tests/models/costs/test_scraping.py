"""The metrics of a service, read as text from wherever they are, and the costs of calls that they tell."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from anytime.costs.distributions import Histogram, RandomTimes, fitted_cost, rounded_cost
from anytime.costs.scraping import (
    CallTimes,
    Piece,
    Scrape,
    Tallies,
    added,
    call_times,
    distributions_of,
    group_cost,
    joined_text,
    of_model,
    paired,
    pieces,
    read_scrape,
    scraped,
    since,
    was_reset,
)
from anytime.errors import AnytimeError
from anytime.groups import CallCost
from anytime.types import Float
from anytime_service.telemetry.metrics import rows_label
from models.refusals import assert_refused
from system import http_server

BOUNDS = ("0.001", "0.002", "0.005", "0.01", "0.1", "+Inf")
Call = tuple[int, float]
"""Rows, and milliseconds."""


def histogram(labels: str, seconds: Sequence[float]) -> list[str]:
    """What a service exposes of some durations."""
    below = {bound: sum(each <= float(bound) for each in seconds) for bound in BOUNDS}
    return [
        *(f'anytime_group_seconds_bucket{{{labels},le="{bound}"}} {float(count)}' for bound, count in below.items()),
        f"anytime_group_seconds_count{{{labels}}} {float(len(seconds))}",
        f"anytime_group_seconds_sum{{{labels}}} {sum(seconds)}",
    ]


def text(*seconds: float, group: str = "hog", model: str = "brake") -> str:
    """What a service exposes of calls of one row, with the remarks of Prometheus and another metric."""
    head = ["# HELP anytime_group_seconds What.", "# TYPE anytime_group_seconds histogram"]
    lines = histogram(f'model="{model}",group="{group}"', seconds)
    return "\n".join([*head, *lines, "# TYPE other gauge", "other 3", ""])


def scrape(calls: Sequence[Call], group: str = "hog", *, counted: bool = True) -> str:
    """What a service exposes of calls of several rows."""
    lines: list[str] = []
    for label in sorted({rows_label(rows) for rows, _ in calls}):
        own = [(rows, ms) for rows, ms in calls if rows_label(rows) == label]
        labels = f'model="m",group="{group}",rows="{label}"'
        lines += histogram(labels, [ms / 1e3 for _, ms in own])
        lines += [f"anytime_group_rows_total{{{labels}}} {float(sum(rows for rows, _ in own))}"] * counted
    return "\n".join([*lines, ""])


def tallies(content: str) -> dict[str, Tallies]:
    return read_scrape(content).timings


def histograms(timings: Tallies) -> dict[str, Histogram]:
    """Of groups whose calls have one row."""
    found = call_times(timings)
    assert all(each.rows == 1 for calls in found.values() for each in calls)
    return {name: calls.times for name, (calls,) in found.items()}


def test_histograms_are_read_in_milliseconds() -> None:
    found = histograms(tallies(text(0.0005, 0.0015, 0.0018, 0.02))["brake"])["hog"]
    assert found.bounds == pytest.approx((1.0, 2.0, 5.0, 10.0, 100.0))
    assert found.counts == (1, 2, 0, 0, 1, 0)
    assert found.mean == pytest.approx((0.5 + 1.5 + 1.8 + 20) / 4)


def test_replicas_add_up_and_other_models_do_not_count() -> None:
    texts = [text(0.0005), text(0.0005, 0.003), text(9.0, model="other"), text(0.0007, group="lab")]
    found = histograms(added(of_model(list(map(tallies, texts)), "brake")))
    assert {name: each.count for name, each in found.items()} == {"hog": 3, "lab": 1}
    assert tallies(text(0.0005) + text(0.003)) == tallies(text(0.0005, 0.003))


def test_what_was_told_before_is_taken_away() -> None:
    earlier, later = text(0.0005, 0.02), text(0.0005, 0.02, 0.0015) + text(0.003, group="lab")
    assert not was_reset("brake", read_scrape(later), read_scrape(earlier))
    before, after = tallies(earlier)["brake"], tallies(later)["brake"]
    found = histograms(since(after, before))
    assert {name: each.counts for name, each in found.items()} == {"hog": (0, 1, 0, 0, 0, 0), "lab": (0, 0, 1, 0, 0, 0)}
    assert found["hog"].mean == pytest.approx(1.5)
    assert histograms(since(before, before)) == {}


def at(start: float, *values: float) -> Scrape:
    """Of a service that began at a time."""
    return read_scrape(text(*values) + f"process_start_time_seconds {start}\n")


BOTH = read_scrape(text(0.0005, 0.02) + text(0.003, group="lab"))
RESETS: dict[str, tuple[Scrape, Scrape, bool]] = {
    "fewer calls": (read_scrape(text(0.0005) + text(0.003, group="lab")), BOTH, True),
    "a group has gone": (read_scrape(text(0.0005, 0.02)), BOTH, True),
    "no calls": (read_scrape(""), BOTH, True),
    "the first calls": (BOTH, read_scrape(""), False),
    "the same": (BOTH, BOTH, False),
    "more calls, and a later start": (at(2e9, 0.001, 0.002), at(1e9, 0.001), True),
    "more calls, and the same start": (at(1e9, 0.001, 0.002), at(1e9, 0.001), False),
    "a proxy left the start out": (read_scrape(text(0.001, 0.002)), at(1e9, 0.001), False),
    "a proxy left the start out before": (at(1e9, 0.001, 0.002), read_scrape(text(0.001)), False),
}
"""What a service reports now and reported before, and whether it was restarted."""


@pytest.mark.parametrize("case", RESETS)
def test_a_service_that_began_anew_is_known_by_lower_counts_or_a_later_start(case: str) -> None:
    now, before, reset = RESETS[case]
    assert was_reset("brake", now, before) is reset


def test_metrics_of_several_services_are_kept_apart_in_one_file(tmp_path: Path) -> None:
    several = [Piece("http://a:9090/metrics", text(0.1)), Piece("http://b:9090/metrics", text(0.2, 0.3))]
    file = tmp_path / "stored.txt"
    file.write_text(joined_text(several))
    read = pieces(str(file))
    assert [piece.source for piece in read] == [piece.source for piece in several]
    assert [tallies(piece.text) for piece in read] == [tallies(piece.text) for piece in several]
    assert histograms(tallies(file.read_text())["brake"])["hog"].count == 3, "and is one of Prometheus' still"
    file.write_text(text(0.1))
    assert pieces(str(file)) == [Piece(str(file), text(0.1))]


def test_metrics_from_before_are_those_of_the_same_service() -> None:
    a, b, c = (Piece(name, "") for name in "abc")
    for now, earlier, expected in (
        ([a, b], [b, a], [a, b]),
        ([a, b, c], [c], [None, None, c]),
        ([a], [c], [c]),
        ([a, b], [c, a], [c, a]),
        ([a, a], [b, a], [b, a]),
    ):
        assert paired(now, earlier) == expected
    why = "the earlier metrics are of 'c', the current ones of 'a', 'b'; give one --since"
    assert_refused(lambda: paired([a, b], [c]), why, error=AnytimeError)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            text(0.1, model="breaks"),
            ["anytime_group_seconds has no groups of model 'brake'", "; did you mean 'breaks'?"],
        ),
        ("up 1\n", ["no group of any model was timed yet"]),
        ("", ["no group of any model was timed yet"]),
        ("<html>502</html>", ["the metrics are not valid Prometheus text"]),
        (
            'anytime_group_seconds_bucket{model="brake",group="hog",le="1"} many\n',
            ["the metrics are not valid Prometheus"],
        ),
    ],
)
def test_text_that_tells_nothing_is_refused_in_a_line(content: str, why: list[str]) -> None:
    assert_refused(lambda: of_model([tallies(content)], "brake"), *why, error=AnytimeError)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((re.sub(rf".*{cut}.*\n", "", text(0.1)), "is incomplete") for cut in (r"\+Inf", "_sum")),
        (text(0.0005, 0.0015).replace('le="0.001"} 1.0', 'le="0.001"} 3.0'), "are inconsistent"),
    ],
    ids=["without the last bucket", "without the sum", "fewer below a higher bound"],
)
def test_half_a_histogram_is_refused(content: str, why: str) -> None:
    assert_refused(lambda: histograms(tallies(content)["brake"]), "of group 'hog'", why, error=AnytimeError)


class Metrics(BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        if self.path.startswith("/moved"):  # the status and the new address
            _, _, status, location = self.path.split("/", 3)
            self.send_response(int(status))
            self.send_header("Location", location)
            self.end_headers()
            return
        refused = self.path.startswith("/secret") and self.headers["Authorization"] != "Bearer sesame"
        self.send_response(code := 401 if refused else 404 if self.path == "/none" else 200)
        self.end_headers()
        if code == 200:
            self.wfile.write(b"\xff" if self.path == "/bytes" else text(0.1).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def seen() -> list[tuple[str, str | None]]:
    """Paths that were requested, and the keys."""
    return []


@pytest.fixture
def port(seen: list[tuple[str, str | None]]) -> Iterator[int]:
    with http_server(Metrics, seen=seen) as port:
        yield port


def test_an_address_is_asked_with_the_key_and_a_file_is_read(port: int, seen: list[Any], tmp_path: Path) -> None:
    base = f"http://127.0.0.1:{port}"
    assert scraped(base) == text(0.1)
    assert scraped(f"{base}/secret", "sesame") == text(0.1)
    assert seen == [("/metrics", None), ("/secret", "Bearer sesame")]
    (tmp_path / "stored.txt").write_text(text(0.2))
    assert scraped(str(tmp_path / "stored.txt")) == text(0.2)
    for path, words in {
        "secret": "returned 401 .*; set ANYTIME_KEY to a key of scope admin",
        "none": "returned 404 .*; a service with ANYTIME_METRICS_PORT has metrics on that port",
        "bytes": f"cannot read {base}/bytes: ",
    }.items():
        with pytest.raises(AnytimeError, match=words):
            scraped(f"{base}/{path}", "wrong")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("there", ["http://localhost:{other}", "http://127.0.0.1:{other}", "https://127.0.0.1:{port}"])
def test_the_key_is_not_sent_to_where_the_address_redirects(
    port: int, seen: list[Any], status: int, there: str
) -> None:
    elsewhere: list[Any] = []
    with http_server(Metrics, seen=elsewhere) as other:
        target = there.format(other=other, port=port) + "/login"
        with pytest.raises(AnytimeError, match=f"returned {status} .*, a redirect to {target}; expected the address"):
            scraped(f"http://127.0.0.1:{port}/moved/{status}/{target}", "sesame")
    assert elsewhere == []
    assert [key for _, key in seen] == ["Bearer sesame"]


def test_a_redirect_without_a_host_is_shown_as_an_address(port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    with pytest.raises(AnytimeError, match=f"a redirect to {base}/login;"):
        scraped(f"{base}/moved/302//login", "sesame")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("ftp://host/metrics", "is not an address of metrics; expected one like"),
        ("file:///etc/passwd", "is not an address of metrics"),
        ("http://", "is not an address of metrics"),
        ("http://host:port", "is not an address of metrics"),
        ("http://[::1", "is not an address of metrics"),
        ("nowhere.txt", "cannot read 'nowhere.txt': no such file or directory; expected an address or a file"),
    ],
)
def test_a_source_that_is_none_is_refused(source: str, why: str) -> None:
    assert_refused(lambda: scraped(source), why, error=AnytimeError)


def test_a_service_that_is_not_there_is_told_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert_refused(
        lambda: scraped(f"http://127.0.0.1:{port}"),
        f"cannot read http://127.0.0.1:{port}/metrics: ",
        error=AnytimeError,
    )


# Costs of calls with several rows: per row, whatever the size of the calls.

PAGES: list[Call] = [(1, 2.5), (100, 52.0), (100, 52.0), (500, 252.0), (3, 3.5)]
"""2 ms, and half a millisecond per row."""


def timings(*several: Sequence[Call]) -> Tallies:
    """Of one service, or of several."""
    return added(of_model([read_scrape(scrape(calls)).timings for calls in several], "m"))


def cost(calls: Tallies, stated: CallCost | None = None, quantile: float | None = None, least: int = 1) -> CallCost:
    return group_cost(call_times(calls)["hog"], stated or CallCost(per_row=1.0), quantile, least)


def parts(cost: CallCost) -> tuple[float, float]:
    return cost.fixed, cost.per_row


def test_the_label_of_rows_is_a_range_from_a_power_of_two() -> None:
    labels = {rows: rows_label(rows) for rows in (1, 2, 3, 4, 7, 8, 100, 127, 128)}
    assert list(labels.values()) == ["1", "2-3", "2-3", "4-7", "4-7", "8-15", "64-127", "64-127", "128-255"]


SINGLE, MANY = [(1, 2.5)] * 9, [(100, 52.0)] * 3
FITTED: dict[str, tuple[list[list[Call]], dict[str, Any], tuple[float, float]]] = {
    "a page costs its time over its rows": ([[(100, 10.0)] * 40], {}, (0.0, 0.1)),
    "a row": ([[(1, 10.0)] * 40], {}, (0.0, 10.0)),
    "one range of rows": ([[(70, 7.0), (120, 12.0)]], {}, (0.0, 0.1)),
    "both parts where calls have different sizes": ([PAGES], {}, (2.0, 0.5)),
    "a fixed part only": ([[(1, 4.0), (100, 4.0)]], {}, (4.0, 0.0)),
    "rows only": ([[(1, 0.3), (100, 30.0)]], {}, (0.0, 0.3)),
    "no part is negative where larger calls took less": ([[(1, 9.0), (100, 3.0)]], {}, (3.6, 0.0)),
    "sizes with few calls do not decide": (
        [[(100, 10.0)] * 40 + [(1, 9.0)] * 2],
        {"least": 30},
        (0.0, (400 + 18) / 4002),
    ),
    "services with calls of other sizes": ([SINGLE, MANY], {}, (2.0, 0.5)),
    "a stated fixed part keeps its share where calls have one size, here twice as slow": (
        [[(100, 104.0)] * 40],
        {"stated": CallCost(fixed=2.0, per_row=0.5)},
        (4.0, 1.0),
    ),
    "a stated cost of 0": ([[(100, 10.0)]], {"stated": CallCost(fixed=0.0, per_row=0.0)}, (0.0, 0.1)),
    # Half of the bucket from 2 to 5 ms, and of that from 10 to 100 ms.
    "a quantile is that of calls of one size": (
        [[(1, 5.0)] * 50 + [(100, 50.0)] * 50],
        {"quantile": 0.5},
        parts(fitted_cost([1, 100], [3.5, 55.0])),
    ),
}


@pytest.mark.parametrize("case", FITTED)
def test_calls_cost_a_fixed_part_and_a_part_per_row(case: str) -> None:
    services, options, expected = FITTED[case]
    assert parts(cost(timings(*services), **options)) == pytest.approx(expected, abs=1e-9)


def test_what_was_counted_before_is_taken_away_with_its_rows() -> None:
    before, after = timings([(100, 99.0)] * 5), timings([(100, 99.0)] * 5 + [(100, 10.0)] * 4 + [(3, 0.3)])
    found = call_times(since(after, before))["hog"]
    assert [(each.rows, each.calls) for each in found] == [(3, 1), (100, 4)]
    assert [each.times.mean for each in found] == pytest.approx([0.3, 10.0])


def test_the_fit_is_the_least_sum_of_squared_relative_errors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = np.sort(rng.choice(np.arange(1, 500), size=4, replace=False)).astype(float)
        times, weights = rng.uniform(0.1, 9, size=4), rng.integers(1, 90, size=4).astype(float)

        def error(x: Float, rows: Float = rows, times: Float = times, weights: Float = weights) -> float:
            return float(np.sum(weights * ((x[0] + x[1] * rows - times) / times) ** 2))

        found = np.array(parts(fitted_cost(rows.tolist(), times.tolist(), weights.tolist())))
        best = minimize(error, [1.0, 0.01], bounds=[(0, None), (0, None)], tol=1e-14)
        assert error(found) <= error(best.x) * (1 + 1e-6)


def test_a_distribution_is_of_the_most_frequent_rows() -> None:
    calls = {
        "a": call_times(timings([(100, 10.0)] * 40 + [(1, 0.1)] * 3))["hog"],
        "b": [CallTimes(200.0, Histogram(bounds=(1.0, 10.0), counts=(0, 5, 0), sum=25.0))],
    }
    found = distributions_of(calls, {"a": CallCost(per_row=0.1), "b": CallCost(fixed=0.003, per_row=1e-5)}, "here")
    assert (found.rows, found.groups["a"].count) == (100, 40)
    means = [each.mean for each in found.groups.values() if isinstance(each, Histogram)]
    assert means == pytest.approx([10.0, 5.0 * (3 + 1) / (3 + 2)]), "as the costs say"


@pytest.mark.parametrize(
    ("sample", "value", "shown"),
    [
        ('anytime_group_seconds_sum{model="m",group="hog",rows="1"}', "NaN", "nan"),
        ('anytime_group_seconds_bucket{model="m",group="hog",rows="1",le="+Inf"}', "+Inf", "inf"),
        ('anytime_group_rows_total{model="m",group="hog",rows="1"}', "-1", "-1"),
        ("process_start_time_seconds", "NaN", "nan"),
    ],
)
def test_a_number_that_is_not_finite_is_one_clear_error(sample: str, value: str, shown: str) -> None:
    why = (
        "the metrics have ",
        sample.partition("{")[0],
        f" {shown}; expected finite numbers, 0 or more; read the metrics",
    )
    assert_refused(lambda: read_scrape(f"{sample} {value}\n"), *why, error=AnytimeError)
    read_scrape('other_seconds_sum{model="m",group="hog"} NaN\nother NaN\n')


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (scrape([(100, 10.0)], counted=False), r'"64-127" without anytime_group_rows_total'),
        (scrape([(100, 10.0)]).replace("64-127", "many"), 'have calls of rows="many"; expected a range'),
        (scrape([(1, 10.0)]).replace('le="0.01"', 'le="few"'), "the histogram of group 'hog' is incomplete"),
    ],
    ids=["not counted", "not a range", "incomplete"],
)
def test_rows_that_are_not_counted_or_not_a_range_are_refused(content: str, why: str) -> None:
    assert_refused(lambda: call_times(read_scrape(content).timings["m"]), why, error=AnytimeError)


def test_one_row_needs_no_count() -> None:
    assert call_times(read_scrape(scrape([(1, 10.0)], counted=False)).timings["m"])["hog"][0].rows == 1


def test_rows_counted_a_moment_later_stay_in_their_range() -> None:
    content = scrape([(100, 10.0)]).replace("} 100.0", "} 300.0")
    assert call_times(read_scrape(content).timings["m"])["hog"][0].rows == 127


def test_costs_are_rounded_to_four_digits_and_stated_as_numbers_without_a_fixed_part() -> None:
    assert rounded_cost(CallCost(per_row=1.23456)) == 1.235
    assert rounded_cost(CallCost(fixed=0.123456, per_row=3.0)) == CallCost(fixed=0.1235, per_row=3.0)


def test_times_reach_a_prefix_when_they_have_passed() -> None:
    assert RandomTimes(np.array([[0.0, 10.0, 30.0]])).reached(np.array([5.0, 10.0, 40.0])).tolist() == [[0, 1, 2]]
