"""Group timings of a running service: `anytime_group_seconds` in the text of its metrics.

A call computes a group for one row or several. The label `rows` of its duration is a range of numbers of rows, such as
"64-127", and `anytime_group_rows_total` is the exact number of rows of all calls in this range. So the time per row is
known, and how the duration of a call grows with its rows. Metrics without the label are of single rows.

The text comes from the service's `/metrics`, or from a file that stores such a text. Counts only grow, so subtracting
an earlier text from a later one gives the counts of the time between them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from anytime._files import read_text
from anytime.costs.distributions import CostDistributions, Histogram, fitted_cost
from anytime.errors import AnytimeError, EnvironmentFailure, listed, suggestion
from anytime.groups import CallCost

FAMILY = "anytime_group_seconds"

MARK = "# metrics of "
"""Start of the comment line before the metrics of each service, in a file with several."""

ROWS_FAMILY = "anytime_group_rows"

ONE_ROW = "1"
"""Label of calls with one row."""

SUM, ROWS, STARTED = "sum", "rows", "started"

_KINDS = {
    f"{FAMILY}_bucket": "le",
    f"{FAMILY}_sum": SUM,
    f"{ROWS_FAMILY}_total": ROWS,
    "process_start_time_seconds": STARTED,
}
"""The samples that are read."""

Tallies = dict[tuple[str, str, str], float]
"""For each group and range of rows, the number of calls that took at most each bound (in seconds, as written); and the
sum of their seconds, "sum", and of their rows, "rows"."""


class Scrape(NamedTuple):
    """The timings in a text, by model, and the start times of its processes, in order."""

    timings: dict[str, Tallies]
    started: tuple[float, ...]


class Piece(NamedTuple):
    """The metrics of one service, and their source."""

    source: str
    text: str


class _NoRedirects(HTTPRedirectHandler):
    """urllib would copy the header with the key to the new address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def scraped(source: str, api_key: str | None = None) -> str:
    """Return the text of a service's metrics, or raise AnytimeError. No redirect is followed.

    `source` is `http://host:port/metrics`, `https://...` (without a path: `/metrics`), or the path of a file.
    """
    if "://" not in source:
        return read_text(Path(source), repr(source), AnytimeError, "; expected an address or a file of metrics")
    try:
        parts = urlsplit(source)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a non-numeric port, an unclosed bracket
        known = False
    if not known:
        raise AnytimeError(f"{source!r} is not an address of metrics; expected one like http://127.0.0.1:8000/metrics")
    address = source if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
    headers = {"Accept": "text/plain; version=0.0.4"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with build_opener(_NoRedirects).open(Request(address, headers=headers), timeout=30.0) as response:  # noqa: S310  (http, checked)
            return str(response.read(), "utf-8")
    except HTTPError as error:
        hint = {
            404: "; a service with ANYTIME_METRICS_PORT has metrics on that port",
            401: "; set ANYTIME_KEY to a key of scope admin",
            403: "; set ANYTIME_KEY to a key of scope admin",
        }.get(error.code, "")
        if location := error.headers.get("Location"):
            hint = f", a redirect to {urljoin(address, location)}; expected the address of the metrics themselves"
        kind = EnvironmentFailure if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR else AnytimeError
        raise kind(f"{address} returned {error.code} {error.reason}{hint}") from error
    except (InvalidURL, ValueError) as error:
        raise AnytimeError(f"cannot read {address}: {error or type(error).__name__}") from error
    except (HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise EnvironmentFailure(f"cannot read {address}: {why or type(error).__name__}") from error


def pieces(source: str, api_key: str | None = None) -> list[Piece]:
    """Return the metrics of a service, or of each of several services stored in one file; see `scraped`."""
    text = scraped(source, api_key)
    first, *others = re.split(rf"^{MARK}(.*)\n", text, flags=re.MULTILINE)
    if not others or first.strip():
        return [Piece(source, text)]
    return [Piece(name, content) for name, content in zip(others[::2], others[1::2], strict=True)]


def joined_text(several: Iterable[Piece]) -> str:
    """Return text that `pieces` can read, and that is still valid Prometheus text."""
    return "".join(f"{MARK}{piece.source}\n{piece.text}\n" for piece in several)


def paired(later: Sequence[Piece], earlier: Sequence[Piece]) -> list[Piece | None]:
    """Return the earlier piece of each later piece's service, by name, else by position; raise if neither fits."""
    names = [piece.source for piece in later]
    named = {piece.source: piece for piece in earlier}
    if set(named) <= set(names) and len(set(names)) == len(names) and len(named) == len(earlier):
        return [named.get(name) for name in names]
    if len(earlier) != len(later):
        raise AnytimeError(
            f"the earlier metrics are of {listed(list(named))}, the current ones of {listed(names)}; "
            "give one --since for each --from, in the same order, or the file that --keep wrote"
        )
    return list(earlier)


def read_scrape(text: str) -> Scrape:
    """Return the timings of the groups of each model, and when the processes started.

    Raise AnytimeError if the text is not Prometheus text, or if one of these numbers is negative or not finite.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ImportError as error:
        raise AnytimeError("reading metrics requires prometheus-client; pip install 'anytime-linear[serve]'") from error
    try:
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise AnytimeError(f"the metrics are not valid Prometheus text ({error or type(error).__name__})") from error
    timings: dict[str, Tallies] = {}
    started: list[float] = []
    for sample in samples:
        labels, kind = sample.labels, _KINDS.get(sample.name)
        if kind is None or (kind != STARTED and not {"model", "group"} <= labels.keys()):
            continue
        if not (math.isfinite(sample.value) and sample.value >= 0):
            where = ", ".join(f'{name}="{value}"' for name, value in labels.items())
            raise AnytimeError(
                f"the metrics have {sample.name}{{{where}}} {sample.value}; expected finite numbers, 0 or more; read "
                "the metrics of the service again"
            )
        if kind == STARTED:
            started.append(sample.value)
        else:
            key = labels.get("le", "") if kind == "le" else kind
            values = timings.setdefault(labels["model"], defaultdict(float))
            values[labels["group"], labels.get("rows", ONE_ROW), key] += sample.value
    return Scrape(timings, tuple(sorted(started)))


def of_model(timings: Sequence[Mapping[str, Tallies]], model: str) -> list[Tallies]:
    """Return the timings of a model in the texts of several services; raise AnytimeError if no text has some."""
    models = sorted({name for each in timings for name in each})
    if model not in models:
        why = suggestion(model, models) if models else "no group of any model was timed yet"
        raise AnytimeError(f"{FAMILY} has no groups of model {model!r}; {why}")
    return [each.get(model, {}) for each in timings]


def added(several: Sequence[Tallies]) -> Tallies:
    """Return the timings of several services together."""
    return {key: sum(each.get(key, 0.0) for each in several) for key in dict.fromkeys(chain.from_iterable(several))}


def was_reset(model: str, later: Scrape, earlier: Scrape) -> bool:
    """Return whether a service restarted between two texts: it started at another time, or a count decreased."""
    if later.started and earlier.started and later.started != earlier.started:
        return True
    counts = later.timings.get(model, {})
    # Sums of seconds have rounding errors; counts do not.
    return any(counts.get(key, 0.0) < value - 1e-9 for key, value in earlier.timings.get(model, {}).items())


def since(later: Tallies, earlier: Tallies) -> Tallies:
    """Return the timings between two texts of one service."""
    return {key: value - earlier.get(key, 0.0) for key, value in later.items()}


class CallTimes(NamedTuple):
    """Durations of calls of a group with similar numbers of rows, in milliseconds, and the mean number of rows."""

    rows: float
    times: Histogram

    @property
    def calls(self) -> int:
        return self.times.count


def call_times(timings: Tallies) -> dict[str, list[CallTimes]]:
    """Return the durations of the calls of each group with values, by increasing number of rows.

    Raise AnytimeError if buckets, or the numbers of rows, are missing or inconsistent.
    """
    by_size: dict[tuple[str, str], dict[str, float]] = {}
    for (group, size, key), value in timings.items():
        by_size.setdefault((group, size), {})[key] = value
    by_group: dict[str, list[CallTimes]] = {}
    for (group, size), values in by_size.items():
        if (times := _histogram(group, values)) is not None:
            by_group.setdefault(group, []).append(
                CallTimes(_mean_rows(group, size, values.get(ROWS), times.count), times)
            )
    return {group: sorted(sizes, key=lambda calls: calls.rows) for group, sizes in by_group.items()}


def _mean_rows(group: str, size: str, rows: float | None, calls: int) -> float:
    """Return the mean number of rows of calls with the label `size`."""
    low, _, high = size.partition("-")
    if size != ONE_ROW and (rows is None or not (low.isdecimal() and high.isdecimal())):
        what = f'calls of rows="{size}"' + (f" without {ROWS_FAMILY}_total" if rows is None else "")
        raise AnytimeError(f"the metrics of group {group!r} have {what}; expected a range such as 64-127, with it")
    # The rows are written a moment after the calls, so they may count more of them.
    return 1.0 if size == ONE_ROW or rows is None else min(max(rows / calls, float(low)), float(high))


def _histogram(group: str, values: Mapping[str, float]) -> Histogram | None:
    """Return a histogram in ms; None without values."""
    try:
        keys = sorted(values.keys() - {SUM, ROWS}, key=float)
    except ValueError:
        keys = []
    if not keys or float(keys[-1]) != float("inf") or SUM not in values:
        raise AnytimeError(f"the histogram of group {group!r} is incomplete; expected buckets up to +Inf and a sum")
    below = [round(values[key]) for key in keys]
    if not below[-1]:
        return None
    counts = tuple(upper - lower for lower, upper in pairwise([0, *below]))
    if min(counts) < 0:
        raise AnytimeError(f"the buckets of group {group!r} are inconsistent; read the metrics again")
    return Histogram(
        bounds=tuple(float(key) * 1e3 for key in keys[:-1]), counts=counts, sum=max(values[SUM], 0.0) * 1e3
    )


def mean_rows(calls: Sequence[CallTimes]) -> float:
    """Return the mean number of rows of all calls, at least 1."""
    return sum(each.rows * each.calls for each in calls) / sum(each.calls for each in calls)


def group_cost(calls: Sequence[CallTimes], stated: CallCost, quantile: float | None, least: int) -> CallCost:
    """Return the cost of a group by the rows of a call, in milliseconds: of mean durations, or of a quantile of them.

    Both parts are fitted where calls of different sizes were measured, each size `least` times. With one size, a cost
    that states a fixed part keeps its proportions.
    """
    sizes = [each for each in calls if each.calls >= least] or calls
    if len(sizes) > 1:
        return fitted_cost(
            [each.rows for each in sizes],
            [each.times.value(quantile) for each in sizes],
            [each.calls for each in sizes],
        )
    rows, duration = sizes[0].rows, sizes[0].times.value(quantile)
    if quantile is None:  # sums of all calls
        rows = mean_rows(calls)
        duration = sum(each.times.sum for each in calls) / sum(each.calls for each in calls)
    before = stated.of_call(rows)
    if not before:
        return CallCost(per_row=duration / rows)
    return CallCost(fixed=stated.fixed * duration / before, per_row=stated.per_row * duration / before)


def most_frequent(calls: Sequence[CallTimes]) -> CallTimes:
    """Return the size of most calls."""
    return max(calls, key=lambda each: each.calls)


def distributions_of(
    measured: Mapping[str, Sequence[CallTimes]], costs: Mapping[str, CallCost], source: str
) -> CostDistributions:
    """Return, for each group, the distribution of the duration of its most frequent calls.

    The distributions are of one number of rows, that of most calls of all groups; calls with other numbers are scaled
    as the costs of the groups.
    """
    often = {group: most_frequent(calls) for group, calls in measured.items()}
    rows = max(round(most_frequent(list(often.values())).rows), 1)

    def scaled(group: str, calls: CallTimes) -> Histogram:
        then = costs[group].of_call(calls.rows)
        factor = costs[group].of_call(rows) / then if then > 0 else rows / calls.rows
        return calls.times if calls.rows == rows else calls.times.scaled(factor)

    return CostDistributions(
        source=source, rows=rows, groups={name: scaled(name, each) for name, each in often.items()}
    )
