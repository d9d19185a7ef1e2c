"""What a running service tells of its groups: `anytime_group_seconds` in the text of its metrics.

The text comes from the service's `/metrics`, or from a file in which such a text was kept. Counts only grow, so that
those of an earlier text can be taken from those of a later one: what is left is of the time between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from anytime.errors import AnytimeError, listed, suggestion
from anytime.histogram import Histogram

__all__ = ["FAMILY", "Tallies", "histograms", "scraped", "since", "tallies"]

FAMILY = "anytime_group_seconds"

TIMEOUT_S = 30.0
"""How long a service may take to tell."""

_MS = 1e3

Tallies = dict[str, dict[str, float]]
"""For each group, how many values lie at each bound (in seconds, as written) or under it; and their "sum"."""


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
            reason = (error.strerror or str(error)).lower()
            raise AnytimeError(f"cannot read {source!r}: {reason}; expected an address or a file of metrics") from error
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
        raise AnytimeError(f"{address} answers {error.code} {error.reason}{hint}") from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise AnytimeError(f"cannot read {address}: {why or type(error).__name__}") from error


def tallies(texts: Iterable[str], model: str) -> Tallies:
    """What some texts tell of the groups of one model, added up: of replicas, for example.

    Raises
    ------
    AnytimeError
        A text is none of Prometheus'; or none tells anything of this model.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ImportError as error:
        raise AnytimeError("reading metrics needs prometheus-client; pip install 'anytime-linear[serve]'") from error
    found: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    models: set[str] = set()
    for text in texts:
        try:
            samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        except (ValueError, IndexError, KeyError) as error:
            raise AnytimeError(f"this is no text of Prometheus' metrics ({error or type(error).__name__})") from error
        for sample in samples:
            if sample.name not in (f"{FAMILY}_bucket", f"{FAMILY}_sum"):
                continue
            models.add(sample.labels.get("model", ""))
            if sample.labels.get("model") == model and "group" in sample.labels:
                key = sample.labels["le"] if sample.name.endswith("_bucket") else "sum"
                found[sample.labels["group"]][key] += sample.value
    if not found:
        told = suggestion(model, sorted(models)) if models else "no group of any model has come yet"
        raise AnytimeError(f"nothing is told of groups of model {model!r} by {FAMILY}; {told}")
    return {group: dict(values) for group, values in found.items()}


def since(later: Tallies, earlier: Tallies) -> Tallies:
    """What came between two texts.

    Raises
    ------
    AnytimeError
        Something has become less: the service began anew, or these are of different ones.
    """
    left: Tallies = {}
    for group, values in later.items():
        before = earlier.get(group, {})
        left[group] = {key: value - before.get(key, 0.0) for key, value in values.items()}
    # Sums of seconds are rounded as they are added up; counts are not.
    fallen = [group for group, values in left.items() if min(values.values()) < -1e-9]
    if fallen:
        raise AnytimeError(
            f"{listed(fallen)} had come more often before than after; the service began anew, so leave out --since"
        )
    return left


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
