"""The metrics of a service, read as text from wherever they are."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from anytime.costs.distributions import Histogram
from anytime.costs.scraping import (
    Piece,
    Scrape,
    Tallies,
    added,
    call_times,
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
from models.refusals import assert_refused
from system import http_server


def text(*values: float, group: str = "hog", model: str = "brake") -> str:
    """As the service tells it, of values in seconds."""
    bounds = ("0.001", "0.002", "0.005", "+Inf")
    labels = f'model="{model}",group="{group}"'
    lines = ["# HELP anytime_group_seconds What.", "# TYPE anytime_group_seconds histogram"]
    for bound in bounds:
        below = sum(value <= float(bound) for value in values)
        lines.append(f'anytime_group_seconds_bucket{{{labels},le="{bound}"}} {float(below)}')
    lines.append(f"anytime_group_seconds_count{{{labels}}} {float(len(values))}")
    lines.append(f"anytime_group_seconds_sum{{{labels}}} {sum(values)}")
    return "\n".join([*lines, "# TYPE other gauge", "other 3", ""])


def tallies(content: str) -> dict[str, Tallies]:
    return read_scrape(content).timings


def histograms(timings: Tallies) -> dict[str, Histogram]:
    """Of groups whose calls have one row."""
    found = call_times(timings)
    assert all(each.rows == 1 for calls in found.values() for each in calls)
    return {name: calls.times for name, (calls,) in found.items()}


def test_histograms_are_read_in_milliseconds() -> None:
    found = histograms(tallies(text(0.0005, 0.0015, 0.0018, 0.02))["brake"])["hog"]
    assert found.bounds == pytest.approx((1.0, 2.0, 5.0))
    assert found.counts == (1, 2, 0, 1)
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
    assert {name: each.counts for name, each in found.items()} == {"hog": (0, 1, 0, 0), "lab": (0, 0, 1, 0)}
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
    together = histograms(tallies(file.read_text())["brake"])["hog"]
    assert together.count == 3, "and is one of Prometheus' still"
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
    with pytest.raises(AnytimeError, match=why):
        paired([a, b], [c])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (text(0.1, model="breaks"), "anytime_group_seconds has no groups of model 'brake'.*; did you mean 'breaks'?"),
        ("up 1\n", "no group of any model was timed yet"),
        ("", "no group of any model was timed yet"),
        ("<html>502</html>", "the metrics are not valid Prometheus text"),
        (
            'anytime_group_seconds_bucket{model="brake",group="hog",le="1"} many\n',
            "the metrics are not valid Prometheus",
        ),
    ],
)
def test_text_that_tells_nothing_is_refused_in_a_line(content: str, why: str) -> None:
    with pytest.raises(AnytimeError, match=why) as refused:
        of_model([tallies(content)], "brake")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((re.sub(rf".*{cut}.*\n", "", text(0.1)), "the histogram .* is incomplete") for cut in (r"\+Inf", "_sum")),
        (text(0.0005, 0.0015).replace('le="0.001"} 1.0', 'le="0.001"} 3.0'), "the buckets .* are inconsistent"),
    ],
    ids=["without the last bucket", "without the sum", "fewer below a higher bound"],
)
def test_half_a_histogram_is_refused(content: str, why: str) -> None:
    with pytest.raises(AnytimeError, match=why.replace(".*", "of group 'hog'")):
        histograms(tallies(content)["brake"])


class _Metrics(BaseHTTPRequestHandler):
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
        self.send_response(401 if refused else 200)
        self.end_headers()
        if not refused:
            self.wfile.write(b"\xff" if self.path == "/bytes" else text(0.1).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def seen() -> list[tuple[str, str | None]]:
    """Paths that were requested, and the keys."""
    return []


@pytest.fixture
def port(seen: list[tuple[str, str | None]]) -> Iterator[int]:
    with http_server(_Metrics, seen=seen) as port:
        yield port


def test_an_address_is_asked_with_the_key_and_a_file_is_read(port: int, seen: list[Any], tmp_path: Path) -> None:
    base = f"http://127.0.0.1:{port}"
    assert scraped(base) == text(0.1)
    assert scraped(f"{base}/secret", "sesame") == text(0.1)
    assert seen == [("/metrics", None), ("/secret", "Bearer sesame")]
    (tmp_path / "stored.txt").write_text(text(0.2))
    assert scraped(str(tmp_path / "stored.txt")) == text(0.2)
    with pytest.raises(AnytimeError, match=r"returned 401 .*; set ANYTIME_KEY to a key of scope admin"):
        scraped(f"{base}/secret", "wrong")
    with pytest.raises(AnytimeError, match=f"cannot read {base}/bytes: "):
        scraped(f"{base}/bytes")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("there", ["http://localhost:{other}", "http://127.0.0.1:{other}", "https://127.0.0.1:{port}"])
def test_the_key_is_not_sent_to_where_the_address_redirects(
    port: int, seen: list[Any], status: int, there: str
) -> None:
    elsewhere: list[Any] = []
    with http_server(_Metrics, seen=elsewhere) as other:
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
    with pytest.raises(AnytimeError, match=why):
        scraped(source)


def test_a_service_that_is_not_there_is_told_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert_refused(
        lambda: scraped(f"http://127.0.0.1:{port}"),
        f"cannot read http://127.0.0.1:{port}/metrics: ",
        error=AnytimeError,
    )
