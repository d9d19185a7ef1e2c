"""Group timings of a running service: `anytime_group_seconds` in the text of its metrics.

The text comes from the service's `/metrics`, or from a file that stores such a text. Counts only grow, so subtracting
an earlier text from a later one gives the counts of the time between them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from anytime._files import read_text
from anytime.costs.distributions import Histogram
from anytime.errors import AnytimeError, listed, suggestion

FAMILY = "anytime_group_seconds"

MARK = "# metrics of "
"""Start of the comment line before the metrics of each service, in a file with several."""

Tallies = dict[tuple[str, str], float]
"""For each group, the number of values at or below each bound (in seconds, as written); and their "sum"."""


class Piece(NamedTuple):
    """The metrics of one service, and their source."""

    source: str
    text: str


def scraped(source: str, api_key: str | None = None) -> str:
    """Return the text of a service's metrics, or raise AnytimeError.

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
    headers = {"Accept": "text/plain; version=0.0.4"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        with urlopen(Request(address, headers=headers), timeout=30.0) as response:  # noqa: S310  (http, checked)
            content: bytes = response.read()
            return content.decode("utf-8")
    except HTTPError as error:
        hint = "; set ANYTIME_KEY to a key of scope admin" if error.code in (401, 403) else ""
        failed = error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
        raise AnytimeError(f"{address} returned {error.code} {error.reason}{hint}", environment=failed) from error
    except (InvalidURL, ValueError) as error:
        raise AnytimeError(f"cannot read {address}: {error or type(error).__name__}") from error
    except (HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise AnytimeError(f"cannot read {address}: {why or type(error).__name__}", environment=True) from error


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


def tallies(text: str) -> dict[str, Tallies]:
    """Return the timings of the groups of each model; raise AnytimeError if the text is not Prometheus text."""
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ImportError as error:
        raise AnytimeError("reading metrics requires prometheus-client; pip install 'anytime-linear[serve]'") from error
    try:
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise AnytimeError(f"the metrics are not valid Prometheus text ({error or type(error).__name__})") from error
    found: dict[str, Tallies] = {}
    for sample in samples:
        if sample.name in (f"{FAMILY}_bucket", f"{FAMILY}_sum") and {"model", "group"} <= sample.labels.keys():
            values = found.setdefault(sample.labels["model"], defaultdict(float))
            key = sample.labels["le"] if sample.name.endswith("_bucket") else "sum"
            values[sample.labels["group"], key] += sample.value
    return found


def of_model(timings: Sequence[Mapping[str, Tallies]], model: str) -> list[Tallies]:
    """Return the timings of a model in the texts of several services; raise AnytimeError if no text has some."""
    models = sorted({name for each in timings for name in each})
    if model not in models:
        why = suggestion(model, models) if models else "no group of any model was timed yet"
        raise AnytimeError(f"{FAMILY} has no groups of model {model!r}; {why}")
    return [each.get(model, {}) for each in timings]


def added(several: Iterable[Tallies]) -> Tallies:
    total: Tallies = defaultdict(float)
    for timings in several:
        for key, value in timings.items():
            total[key] += value
    return total


def was_reset(later: Tallies, earlier: Tallies) -> bool:
    """Return whether a count decreased between two texts of one service, whose counts only grow."""
    # Sums of seconds have rounding errors; counts do not.
    return any(later.get(key, 0.0) < value - 1e-9 for key, value in earlier.items())


def since(later: Tallies, earlier: Tallies) -> Tallies:
    """Return the timings between two texts of one service."""
    return {key: value - earlier.get(key, 0.0) for key, value in later.items()}


def histograms(timings: Tallies) -> dict[str, Histogram]:
    """Return histograms in ms, for groups with values; raise AnytimeError if buckets are missing or not counts."""
    found: dict[str, Histogram] = {}
    by_group: dict[str, dict[str, float]] = {}
    for (group, key), value in timings.items():
        by_group.setdefault(group, {})[key] = value
    for group, values in by_group.items():
        keys = sorted(values.keys() - {"sum"}, key=float)
        if not keys or float(keys[-1]) != float("inf") or "sum" not in values:
            raise AnytimeError(f"the histogram of group {group!r} is incomplete; expected buckets up to +Inf and a sum")
        below = [round(values[key]) for key in keys]
        if not below[-1]:
            continue
        counts = tuple(upper - lower for lower, upper in pairwise([0, *below]))
        if min(counts) < 0:
            raise AnytimeError(f"the buckets of group {group!r} are inconsistent; read the metrics again")
        bounds = tuple(float(key) * 1e3 for key in keys[:-1])
        found[group] = Histogram(bounds=bounds, counts=counts, sum=max(values["sum"], 0.0) * 1e3)
    return found
