"""A vehicle that takes 30 pictures a second and has 20 ms to estimate how near the obstacle ahead is.

    python vehicle.py                               trains in a few seconds, serves, drives for 5 s
    python vehicle.py --save vehicle.safetensors    trains only; `anytime serve vehicle.safetensors`, then
    python vehicle.py --url http://127.0.0.1:8000   drives with that server

A separate process computes six groups of features from each picture, in the order of the model's sequence. After 20 ms
the server answers from the groups that it has received. The vehicle brakes if the obstacle may be too near: if the
prediction plus twice the expected error of its prefix exceeds a threshold. A short prefix therefore brakes sooner.
Without an answer in time, or if an overloaded server refuses, the vehicle assumes that the obstacle is as near as
possible.

Pictures are made up: a road with a bright box on it, larger when it is nearer, in changing light and noise. Needs the
extras `train`, `serve` and `client`.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from own_server import serving
from scipy import ndimage

from anytime._linalg import single_blas_thread
from anytime.inference.prediction import Answer
from anytime_service.client import Client

Numbers = NDArray[Any]

DEADLINE_MS = 20.0
RATE_HZ = 30.0
TRAINED_ON = 120
"""Number of training pictures."""

HEIGHT, WIDTH = 144, 192
TOO_NEAR = 0.55
"""Nearness above which the vehicle must brake: 1 at the bumper, 0 at the horizon."""

MAX_LATENESS_MS = 2.0
"""The vehicle ignores an answer that is later than this."""


class Frame(NamedTuple):
    """The input of the extractors: this picture, the previous one, and the speed of the vehicle."""

    picture: Numbers
    before: Numbers
    speed: float


_Y, _X = np.mgrid[0:HEIGHT, 0:WIDTH]


def picture(nearness: float, place: float, light: float, rng: np.random.Generator) -> Numbers:
    """Draw a road that narrows, the shadow of a bridge, an obstacle, and noise, at some brightness."""
    horizon = HEIGHT / 3
    road = np.abs(_X - WIDTH / 2) < 8 + 0.6 * np.maximum(_Y - horizon, 0)
    drawn = 0.4 + 0.15 * road + 0.05 * np.sin(_Y / 4.0) * road
    shadow = rng.uniform(0.0, HEIGHT)
    drawn = np.where(np.abs(_Y - shadow) < 10, drawn - 0.2, drawn)
    size = 6 + 75 * nearness
    foot, middle = horizon + 0.62 * HEIGHT * nearness, WIDTH / 2 + place * (15 + 30 * nearness)
    box = (np.abs(_X - middle) < size * 0.45) & (np.abs(_Y - foot + size / 2) < size / 2)
    drawn = np.where(box, 0.75 + 0.12 * np.sin(_X / 2.5), drawn)
    noisy = light * drawn + rng.normal(0.0, 0.1, drawn.shape)
    return np.asarray(np.clip(noisy, 0.0, 1.0), dtype=np.float32)


def frames(rng: np.random.Generator) -> Iterator[tuple[Frame, float]]:
    """Yield the frames of a drive towards one obstacle after another, each with the true nearness."""
    while True:
        nearness, place, speed = 0.02, float(rng.uniform(-1, 1)), float(rng.uniform(0.3, 1.0))
        light = float(rng.uniform(0.6, 1.1))
        before = picture(nearness, place, light, rng)
        while nearness < 0.9:
            nearness += 0.06 * speed * (0.5 + nearness)
            now = picture(nearness, place, light, rng)
            yield Frame(now, before, speed + float(rng.normal(0.0, 0.02))), nearness
            before = now


def _zones(values: Numbers, rows: int, columns: int) -> Numbers:
    """Return the means over rows x columns zones."""
    high, wide = values.shape[0] // rows, values.shape[1] // columns
    zones = values[: rows * high, : columns * wide].reshape(rows, high, columns, wide)
    return np.ravel(zones.mean(axis=(1, 3)))


def odometry(frame: Frame) -> Numbers:
    """Return the speed and the change of mean brightness: 2 numbers."""
    return np.array([frame.speed, abs(float(frame.picture.mean()) - float(frame.before.mean()))])


def brightness(frame: Frame) -> Numbers:
    """Return the brightness in 4 x 3 zones: 12 numbers."""
    return _zones(frame.picture, 4, 3)


def edges(frame: Frame) -> Numbers:
    """Return the strength of edges in 4 x 3 zones, after smoothing: 12 numbers."""
    smooth = ndimage.gaussian_filter(frame.picture, 1.5)
    return _zones(np.hypot(ndimage.sobel(smooth, axis=0), ndimage.sobel(smooth, axis=1)), 4, 3)


def bright_region(frame: Frame) -> Numbers:
    """Return the share, foot, head, width and middle of the largest bright region: 5 numbers."""
    smooth = ndimage.median_filter(frame.picture, 5)
    labels, count = ndimage.label(smooth > 1.2 * np.median(smooth))
    if count == 0:
        return np.zeros(5)
    y, x = np.nonzero(labels == np.bincount(labels.ravel())[1:].argmax() + 1)
    return np.array([y.size / labels.size, y.max() / HEIGHT, y.min() / HEIGHT, np.ptp(x) / WIDTH, x.mean() / WIDTH])


def texture(frame: Frame) -> Numbers:
    """Return the energy of six bands of the spectrum in 2 x 3 zones: 36 numbers."""
    spectrum = np.fft.fft2(frame.picture, (192, 192))
    v, u = np.meshgrid(np.fft.fftfreq(192), np.fft.fftfreq(192), indexing="ij")
    found = []
    for frequency in (0.05, 0.1, 0.2):
        for angle in (0.0, math.pi / 2):
            along = (u - frequency * math.cos(angle)) ** 2 + (v - frequency * math.sin(angle)) ** 2
            waves = np.abs(np.fft.ifft2(spectrum * np.exp(-along / (2 * 0.02**2))))
            found.append(_zones(waves[:HEIGHT, :WIDTH], 2, 3))
    return np.concatenate(found)


def motion(frame: Frame) -> Numbers:
    """Return the squared differences to the previous picture, enlarged by 1, 1.02 ... 1.1: 5 numbers."""
    now, before = (ndimage.gaussian_filter(each, 1.0) for each in (frame.picture, frame.before))
    middle = np.array([HEIGHT / 3, WIDTH / 2])
    found = [float(np.square(now - before).mean())]
    for scale in (1.02, 1.04, 1.07, 1.1):
        grown = ndimage.affine_transform(before, np.eye(2) / scale, middle * (1 - 1 / scale), order=1)
        found.append(float(np.square(now - grown).mean()))
    return np.array(found) * 1e3


EXTRACTORS: dict[str, Callable[[Frame], Numbers]] = {
    "odometry": odometry,
    "brightness": brightness,
    "edges": edges,
    "bright_region": bright_region,
    "texture": texture,
    "motion": motion,
}


def train(path: Path) -> None:
    """Measure the cost of each group on this machine, train the model, and save it."""
    from anytime import AnytimeRegressor, AnytimeWarning  # noqa: PLC0415  (loads scikit-learn, which the extractors' process does not need)

    driven = frames(np.random.default_rng(1))
    seen = [next(driven) for _ in range(TRAINED_ON)]
    blocks: dict[str, list[Numbers]] = {name: [] for name in EXTRACTORS}
    times: dict[str, list[float]] = {name: [] for name in EXTRACTORS}
    with single_blas_thread():  # as in the process of the extractors
        for frame, _ in seen:
            for name, extract in EXTRACTORS.items():
                begun = time.perf_counter()
                blocks[name].append(extract(frame))
                times[name].append((time.perf_counter() - begun) * 1e3)
    groups = [
        {"name": name, "features": [f"{name}_{i}" for i in range(len(rows[0]))], "cost": float(np.median(times[name]))}
        for name, rows in blocks.items()
    ]
    X = np.hstack([np.array(rows) for rows in blocks.values()])
    regressor = AnytimeRegressor({"cost_unit": "ms", "groups": groups}, alpha="cv")
    with warnings.catch_warnings():  # the last group may not help: answers are by the policy best
        warnings.simplefilter("ignore", AnytimeWarning)
        model = regressor.fit(X, np.array([nearness for _, nearness in seen])).save(path)
    print(f"{'step':<16}{'cumulative ms':>14}{'expected error':>16}")
    for step in model.manifest.steps:
        print(f"{step.group:<16}{step.cumulative_cost:>14.2f}{math.sqrt(step.cv_error or 0.0):>16.3f}")


def upper_bound(answer: Answer, late_ms: float) -> float:
    """Return how near the obstacle may be: the prediction plus twice its expected error, or 1 without an answer."""
    if answer.reason == "overload" or late_ms > MAX_LATENESS_MS or answer.expected.cv_error is None:
        return 1.0
    return float(answer.prediction) + 2.0 * math.sqrt(answer.expected.cv_error)


@dataclass
class Second:
    """Results of a second of driving; each list has one entry per picture."""

    late_ms: list[float] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    braked: int = 0
    missed: int = 0
    """Pictures at which the vehicle should have braked and did not."""

    def add(self, answer: Answer, late_ms: float, nearness: float) -> None:
        """Record the answer to a picture and the true nearness."""
        brakes = upper_bound(answer, late_ms) > TOO_NEAR
        self.late_ms.append(late_ms)
        self.groups.append(answer.prefix)
        self.errors.append(abs(float(answer.prediction) - nearness))
        self.braked += brakes
        self.missed += nearness > TOO_NEAR and not brakes

    def line(self, name: str) -> str:
        """Return the results as one line."""
        in_time = sum(late <= 0 for late in self.late_ms)
        return (
            f"{name:<10}{in_time:>4} of {len(self.late_ms):<4}{np.mean(self.groups):>6.1f} of {len(EXTRACTORS)}"
            f"{DEADLINE_MS + np.median(self.late_ms):>14.2f}{DEADLINE_MS + max(self.late_ms):>8.2f}"
            f"{np.mean(self.errors):>9.3f}{self.braked:>8}{self.missed:>8}"
        )


def look(client: Client, frame: Frame) -> tuple[Answer, float]:
    """Return the answer to a picture and its lateness in milliseconds."""
    begun = time.perf_counter()
    answer = client.run(EXTRACTORS, frame, DEADLINE_MS, model="vehicle", policy="best", worker="process")
    return answer, (time.perf_counter() - begun) * 1e3 - DEADLINE_MS


def drive(client: Client, seconds: float) -> None:
    """Request answers at a steady rate; print a line per second and a line of totals."""
    driven = frames(np.random.default_rng(2))
    client.warm_up(EXTRACTORS, model="vehicle", worker="process")
    for _ in range(5):
        look(client, next(driven)[0])
    print(
        f"\n{'':<10}{'in time':<12}{'groups':>10}{'ready ms: p50':>14}{'worst':>8}{'error':>9}"
        f"{'braked':>8}{'missed':>8}"
    )
    total, part, count = Second(), Second(), max(1, round(seconds * RATE_HZ))
    begun = time.perf_counter()
    for i in range(count):
        frame, nearness = next(driven)
        time.sleep(max(0.0, begun + i / RATE_HZ - time.perf_counter()))
        answer, late_ms = look(client, frame)
        for each in (total, part):
            each.add(answer, late_ms, nearness)
        if (i + 1) % round(RATE_HZ) == 0 or i + 1 == count:
            print(part.line(f"second {math.ceil((i + 1) / RATE_HZ)}"))
            part = Second()
    print(total.line("in all"))


def main() -> None:
    """Run the example with the arguments of the command line."""
    parser = argparse.ArgumentParser(description="A vehicle that has 20 ms per picture.")
    parser.add_argument("--url", help="a server of the model of --save; by default the example starts one")
    parser.add_argument("--save", type=Path, help="train, save the model to this file, and exit")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to drive")
    arguments = parser.parse_args()
    if arguments.save:
        train(arguments.save)
        return
    if arguments.url:
        _drive(arguments.url, arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "vehicle.safetensors")
        with serving(Path(folder) / "vehicle.safetensors") as url:
            _drive(url, arguments.seconds)


def _drive(url: str, seconds: float) -> None:
    with Client(url, api_key=os.environ.get("ANYTIME_KEY")) as client:
        drive(client, seconds)


if __name__ == "__main__":
    main()
