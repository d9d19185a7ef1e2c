"""Programs that know an exported model and nothing else: one in C, and one that reads the document."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from scipy.special import expit

from anytime import Model
from anytime.model.export import c_source
from anytime.types import Policy
from system import program

SOURCES = Path(__file__).parent / "exported"
STRICT = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off")
ANSWERS = {"prefix": "answer", "best": "best"}


@dataclass(frozen=True)
class Event:
    """A group that arrives, or a request for an answer."""

    group: str = ""
    values: tuple[Any, ...] = ()
    budget: float = math.inf
    policy: Policy = "prefix"


def compiled(model: Model, folder: Path, source: str, *options: str) -> Path:
    """A program with a model in it, without a warning."""
    (folder / "m.h").write_text(c_source(model), encoding="utf-8")
    out = folder / source.partition(".")[0]
    words = [program("cc"), *STRICT, *options, f"-I{folder}", str(SOURCES / source), "-o", str(out), "-lm"]
    subprocess.run(words, check=True, timeout=120)
    return out


def printed(path: Path, lines: list[str]) -> list[str]:
    """The lines that a program prints for some lines of input."""
    done = subprocess.run(
        [path], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout.splitlines()


def added(model: Model, ask: Path, group: str, values: Sequence[Any]) -> str:
    """The line that adds values, None where missing, whose categories the program itself looks up."""
    place, numbers = model.places[group], list(values)
    number = list(model.places).index(group)
    for j in place.expansion.categories:
        numbers[j] = None if values[j] is None else _level(ask, f"{number} {j}", values[j])
    return f"add {number} {' '.join('nan' if v is None else repr(float(v)) for v in numbers)}"


@cache
def _level(ask: Path, place: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else value
    return printed(ask, [f"level {place} {text}"])[0]


def asked(model: Model, ask: Path, events: Iterable[Event]) -> list[tuple[int, list[float]]]:
    """Answers of the program in C: the prefix, and the outputs."""
    lines = [
        added(model, ask, event.group, event.values) if event.group else f"{ANSWERS[event.policy]} {event.budget!r}"
        for event in events
    ]
    answers = (line.split() for line in printed(ask, ["begin", *lines]) if " " in line)
    return [(int(prefix), list(map(float, outputs))) for prefix, *outputs in answers]


def terms_of(feature: dict[str, Any], value: Any) -> list[float]:
    """The terms of a value less their means, by the rules in the docstring of `export`."""
    missing = value is None or value != value
    if "terms" not in feature:
        return [0.0 if missing else value - feature["mean"]]
    terms = feature["terms"]
    date = value
    if feature["categories"]:
        known = value in [term["level"] for term in terms if term["form"] == "level"]
        missing = missing or not (known or "other" in [term["form"] for term in terms])
    elif feature["range"] is not None and not missing:
        low, high = feature["range"]
        value = min(max(value, low), high)
    found = []
    for term in terms:
        match term["form"]:
            case "missing":
                t = float(missing)
            case _ if missing:
                t = term["mean"]
            case "value":
                t = value
            case "hinge":
                t = max(value - term["knot"], 0.0)
            case "ramp":
                t = min(max(value, term["knot"]), term["end"]) - term["knot"]
            case "power":
                t = ((value - term["centre"]) / term["scale"]) ** term["power"]
            case "level":
                t = float(value == term["level"])
            case "sine" | "cosine" as wave:
                angle = 2 * math.pi * value / term["period"]
                t = math.sin(angle) if wave == "sine" else math.cos(angle)
            case "month" | "weekday" | "hour" as part:
                moment = datetime(1970, 1, 1) + timedelta(seconds=date)
                t = float(
                    {"month": moment.month, "weekday": moment.weekday(), "hour": moment.hour}[part] == term["level"]
                )
            case "other":
                t = float(not known)
            case form:
                raise ValueError(f"the form {form!r} has no rule here")
        found.append(t - term["mean"])
    return found


def products_of(features: list[dict[str, Any]], pair: dict[str, Any], values: dict[int, Any]) -> list[float]:
    """The terms of a pair less their means, by the rules in the docstring of `export`."""

    def factor(form: dict[str, Any], place: int) -> float:
        linear: dict[str, Any] = {"categories": False, "range": None, "terms": []}
        feature = linear | features[place]
        feature["terms"] = [*feature["terms"], form | {"mean": 0.0}, {"form": "missing", "mean": 0.0}]
        *_, found, missing = terms_of(feature, values[place])
        return math.nan if missing else found

    found = []
    for term in pair["terms"]:
        product = math.prod(map(factor, term["factors"], pair["pair"]))
        found.append(0.0 if math.isnan(product) else product - term["mean"])
    return found


def read(exported: dict[str, Any], events: list[Event]) -> Iterator[tuple[int, list[float]]]:
    """Answers of a program that knows the document of a model and nothing else."""
    received: dict[int, list[float]] = {}
    values: dict[int, Any] = {}
    groups = {group["name"]: group for group in exported["groups"]}
    for event in events:
        if event.group:
            for place, value in enumerate(event.values, groups[event.group]["start"]):
                received[place], values[place] = terms_of(exported["features"][place], value), value
            for place, feature in enumerate(exported["features"]):
                if set(feature.get("pair", [-1])) <= set(values):
                    received[place] = products_of(exported["features"], feature, values)
            continue
        usable = [
            number
            for number, prefix in enumerate(exported["prefixes"])
            if prefix["cost"] <= event.budget * (1 + 1e-9) and set(range(prefix["features"])) <= set(received)
        ]
        answering = exported["prefixes"][max(usable)]["best"] if event.policy == "best" else max(usable)
        prefix = exported["prefixes"][answering]
        terms = [term for place in range(prefix["features"]) for term in received[place]]
        scores = [
            intercept + sum(term * row[r] for term, row in zip(terms, prefix["coef"], strict=True))
            for r, intercept in enumerate(prefix["intercept"])
        ]
        yield answering, linked(exported, scores)


def linked(exported: dict[str, Any], scores: list[float]) -> list[float]:
    """The outputs for some scores, by the rules in the docstring of `export`."""
    match exported["link"], exported["classes"]:
        case "identity", None:
            return scores
        case "identity", classes:
            if len(classes) == 2:
                second = min(max(scores[0], 0.0), 1.0)
                return [1.0 - second, second]
            clipped = [max(score, 0.0) for score in scores]
            return [score / sum(clipped) for score in clipped]
        case "log", _:
            return [math.exp(scores[0])]
        case "logit", _:
            return [float(expit(-scores[0])), float(expit(scores[0]))]
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]
