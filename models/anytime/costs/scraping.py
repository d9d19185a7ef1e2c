"""What a running service tells of its groups: `anytime_group_seconds` in the text of its metrics.

The text comes from the service's `/metrics`, or from a file in which such a text was kept. Counts only grow, so that
those of an earlier text can be taken from those of a later one: what is left is of the time between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from anytime.costs.distributions import Histogram
from anytime.errors import AnytimeError, file_error, listed, suggestion

__all__ = [
    "FAMILY",
    "Piece",
    "Tallies",
    "added",
    "began_anew",
    "histograms",
    "kept",
    "of_model",
    "paired",
    "pieces",
    "scraped",
    "since",
    "tallies",
]

FAMILY = "anytime_group_seconds"

MARK = "# metrics of "
"""Begins the line, a comment to others, before the metrics of each service in a file that holds several."""

TIMEOUT_S = 30.0
"""How long a service may take to tell."""

_MS = 1e3

Tallies = dict[str, dict[str, float]]
"""For each group, how many values lie at each bound (in seconds, as written) or under it; and their "sum"."""


class Piece(NamedTuple):
    """The metrics of one service, and where they are from."""

    source: str
    text: str


def scraped(source: str, api_key: str | None = None) -> str:
    """The text of a service's metrics, from its address or from a file.

    Parameters
    ----------
    source : `http://host:port/metrics`, `https://...` (without a path: `/metrics`), or the path of a file.
    api_key : sent as `Authorization: Bearer` to an address.

    Raises
    ------
    AnytimeError
        It cannot be had.
    """
    if "://" not in source:
        try:
            return Path(source).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise AnytimeError(f"cannot read {source!r}: it is not text") from error
        except OSError as error:
            raise file_error(
                AnytimeError, f"read {source!r}", error, "; expected an address or a file of metrics"
            ) from error
    try:
        parts = urlsplit(source)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, a bracket that does not close
        known = False
    if not known:
        raise AnytimeError(f"{source!r} is no address of metrics; expected one like http://127.0.0.1:8000/metrics")
    address = source if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
    headers = {"Accept": "text/plain; version=0.0.4"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        with urlopen(Request(address, headers=headers), timeout=TIMEOUT_S) as response:  # noqa: S310  (http, checked)
            content: bytes = response.read()
            return content.decode("utf-8")
    except HTTPError as error:
        hint = "; give a key of scope admin by ANYTIME_KEY" if error.code in (401, 403) else ""
        failed = error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
        raise AnytimeError(f"{address} answers {error.code} {error.reason}{hint}", environment=failed) from error
    except (InvalidURL, ValueError) as error:
        raise AnytimeError(f"cannot read {address}: {error or type(error).__name__}") from error
    except (HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise AnytimeError(f"cannot read {address}: {why or type(error).__name__}", environment=True) from error


def pieces(source: str, api_key: str | None = None) -> list[Piece]:
    """The metrics of a service, or those of each of several that were kept in one file; see `scraped`."""
    text = scraped(source, api_key)
    first, *others = re.split(rf"^{MARK}(.*)\n", text, flags=re.MULTILINE)
    kept = [Piece(name, content) for name, content in zip(others[::2], others[1::2], strict=True)]
    return kept if kept and not first.strip() else [Piece(source, text)]


def kept(several: Iterable[Piece]) -> str:
    """Text that `pieces` reads again, and that is still one of Prometheus' metrics."""
    return "".join(f"{MARK}{piece.source}\n{piece.text}\n" for piece in several)


def paired(later: Sequence[Piece], earlier: Sequence[Piece]) -> list[Piece | None]:
    """Which of the earlier metrics are of the service of each of the later: those of its name, else in their order.

    Raises
    ------
    AnytimeError
        The names are others, and so is their number.
    """
    names = [piece.source for piece in later]
    named = {piece.source: piece for piece in earlier}
    if set(named) <= set(names) and len(set(names)) == len(names) and len(named) == len(earlier):
        return [named.get(name) for name in names]
    if len(earlier) != len(later):
        raise AnytimeError(
            f"metrics from before are of {listed(list(named))}, those from now of {listed(names)}; "
            "give one --since for each --from, in the same order, or what --keep has written"
        )
    return list(earlier)


def tallies(text: str) -> dict[str, Tallies]:
    """What a text tells of the groups of each model.

    Raises
    ------
    AnytimeError
        The text is none of Prometheus'.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ImportError as error:
        raise AnytimeError("reading metrics needs prometheus-client; pip install 'anytime-linear[serve]'") from error
    try:
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise AnytimeError(f"this is no text of Prometheus' metrics ({error or type(error).__name__})") from error
    found: dict[str, Tallies] = {}
    for sample in samples:
        if sample.name in (f"{FAMILY}_bucket", f"{FAMILY}_sum") and {"model", "group"} <= sample.labels.keys():
            values = found.setdefault(sample.labels["model"], {}).setdefault(sample.labels["group"], {})
            key = sample.labels["le"] if sample.name.endswith("_bucket") else "sum"
            values[key] = values.get(key, 0.0) + sample.value
    return found


def of_model(told: Sequence[Mapping[str, Tallies]], model: str) -> list[Tallies]:
    """What each of some services tells of one model: of replicas, for example.

    Raises
    ------
    AnytimeError
        None tells anything of it.
    """
    models = sorted({name for each in told for name in each})
    if model not in models:
        why = suggestion(model, models) if models else "no group of any model has come yet"
        raise AnytimeError(f"nothing is told of groups of model {model!r} by {FAMILY}; {why}")
    return [each.get(model, {}) for each in told]


def added(several: Iterable[Tallies]) -> Tallies:
    """What several services tell together."""
    total: Tallies = {}
    for told in several:
        for group, values in told.items():
            sums = total.setdefault(group, {})
            for key, value in values.items():
                sums[key] = sums.get(key, 0.0) + value
    return total


def began_anew(later: Tallies, earlier: Tallies) -> bool:
    """Whether something has become less between two texts of one service, whose counts only grow."""
    # Sums of seconds are rounded as they are added up; counts are not.
    return any(
        later.get(group, {}).get(key, 0.0) < value - 1e-9
        for group, values in earlier.items()
        for key, value in values.items()
    )


def since(later: Tallies, earlier: Tallies) -> Tallies:
    """What came between two texts of one service."""
    return {
        group: {key: value - earlier.get(group, {}).get(key, 0.0) for key, value in values.items()}
        for group, values in later.items()
    }


def histograms(told: Mapping[str, Mapping[str, float]]) -> dict[str, Histogram]:
    """Histograms in milliseconds, of the groups that have come at all.

    Raises
    ------
    AnytimeError
        Buckets are missing, or are no counts.
    """
    found: dict[str, Histogram] = {}
    for group, values in told.items():
        bounds = sorted((float(key), key) for key in values if key != "sum")
        if not bounds or bounds[-1][0] != float("inf") or "sum" not in values:
            raise AnytimeError(f"the histogram of group {group!r} is not whole; expected buckets up to +Inf and a sum")
        below = [round(values[key]) for _, key in bounds]
        counts = tuple(upper - lower for lower, upper in zip([0, *below], below, strict=False))
        if not below[-1]:
            continue
        if min(counts) < 0:
            raise AnytimeError(f"the buckets of group {group!r} do not add up; were they read while they changed?")
        total = max(values["sum"], 0.0) * _MS
        found[group] = Histogram(bounds=tuple(bound * _MS for bound, _ in bounds[:-1]), counts=counts, sum=total)
    return found
