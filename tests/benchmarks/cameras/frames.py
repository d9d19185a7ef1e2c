"""Feature groups of a pair of frames, as perception code computes them with OpenCV and scikit-image.

OpenCV releases the interpreter during a call. scikit-image, and NumPy for short arrays, hold it most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from skimage.feature import graycomatrix, graycoprops, hog, local_binary_pattern

Frames = NDArray[np.uint8]
"""Previous and current frame: blue, green and red, (2, 480, 640, 3)."""

WIDTH, HEIGHT = 640, 480
PERIOD_MS = 40.0
"""Time between two frames."""

NEAREST_M, FARTHEST_M = 1.5, 25.0
FOCAL = 500.0
"""Pixels per metre at a distance of one metre."""

HORIZON, CAMERA_M = 200, 1.2
"""Row of the horizon, and height of the camera above the ground."""

_NOISE = np.random.default_rng(0).standard_normal((HEIGHT + 100, WIDTH + 100, 3), dtype=np.float32)
"""Noise of the sensor; each frame has another part of it."""


def clip(seed: int, frames: int) -> Iterator[tuple[Frames, float]]:
    """Yield consecutive pairs of a scene, each with the logarithm of the distance in the current frame."""
    rng = np.random.default_rng(seed)
    distance = np.exp(rng.uniform(np.log(NEAREST_M), np.log(FARTHEST_M)))
    step = rng.uniform(2.0, 15.0) * PERIOD_MS / 1e3  # at 2 to 15 m/s
    size, aside = rng.uniform((0.8, 1.2), (1.2, 1.8)), rng.uniform(-0.5, 0.5)
    stripes = [rng.integers(*ends, 3).tolist() for ends in ((0, 120), (130, 255))]
    background, light, noise = _background(rng), _light(rng), np.float32(rng.uniform(2, 6))

    def frame(distance: float) -> NDArray[np.uint8]:
        image = background.copy()
        width, height = np.maximum(size * FOCAL / distance, 2).astype(int).tolist()
        left = int(WIDTH / 2 + aside * FOCAL / distance - width / 2)
        bottom = int(HORIZON + CAMERA_M * FOCAL / distance)
        for part in range(8):
            corners = (left, bottom - height * (part + 1) // 8), (left + width, bottom - height * part // 8)
            cv2.rectangle(image, *corners, stripes[part % 2], -1)
        y, x = rng.integers(0, 100, 2)
        noisy = image * light + noise * _NOISE[y : y + HEIGHT, x : x + WIDTH]
        return np.asarray(np.clip(noisy, 0, 255), dtype=np.uint8)

    previous = frame(distance + step)
    for _ in range(frames):
        current = frame(distance)
        yield np.stack([previous, current]), float(np.log(distance))
        previous, distance = current, max(distance - step, NEAREST_M)


def _background(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return sky, ground and clutter."""
    image = np.empty((HEIGHT, WIDTH, 3), np.float32)
    image[:HORIZON], image[HORIZON:] = rng.uniform(120, 220, 3), rng.uniform(60, 140, 3)
    for cell, strength in ((64, 25.0), (8, 12.0)):
        coarse = rng.normal(0, strength, (HEIGHT // cell + 1, WIDTH // cell + 1, 3)).astype(np.float32)
        image += cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
    for _ in range(rng.integers(4, 14)):
        (x, y), radius = rng.integers(0, (WIDTH, HEIGHT)).tolist(), int(rng.integers(10, 50))
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        if rng.random() < 0.5:
            cv2.circle(mask, (x, y), radius, 1, -1)
        else:
            cv2.rectangle(mask, (x, y), (x + radius, y + 2 * radius), 1, -1)
        image[mask > 0] = rng.uniform(0, 200, 3) + rng.normal(0, 20, (np.count_nonzero(mask), 1))
    return np.clip(image, 0, 255)


def _light(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the light of each column, (width, 1)."""
    left, right = rng.uniform(0.5, 1.2, 2)
    return np.linspace(left, right, WIDTH, dtype=np.float32)[:, None]


cv2.setNumThreads(1)  # also in a worker process, which imports this module

Values = NDArray[Any]


def _gray(frames: Frames, width: int = 320, height: int = 240, which: int = 1) -> Values:
    small = cv2.resize(frames[which], (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY))


def _cells(image: Any, columns: int = 8, rows: int = 6) -> Values:
    """Return the mean of each cell."""
    means = cv2.resize(image.astype(np.float32, copy=False), (columns, rows), interpolation=cv2.INTER_AREA)
    return np.asarray(means).ravel()


def pixels(frames: Frames) -> Values:
    """Return 20 x 15 grey values."""
    return _gray(frames, 20, 15).ravel()


def colours(frames: Frames) -> Values:
    """Return a histogram of each colour."""
    counts = [cv2.calcHist([frames[1]], [channel], None, [16], [0, 256]) for channel in range(3)]
    return np.concatenate(counts).ravel() / (WIDTH * HEIGHT)


def difference(frames: Frames) -> Values:
    """Return the change since the previous frame, by cell."""
    return _cells(cv2.absdiff(_gray(frames, which=0), _gray(frames)))


def gradients(frames: Frames) -> Values:
    """Return the strength of the vertical and horizontal gradients, by cell."""
    gray = _gray(frames)
    return np.concatenate([_cells(np.abs(cv2.Sobel(gray, cv2.CV_32F, *axis))) for axis in ((1, 0), (0, 1))])


def edges(frames: Frames) -> Values:
    """Return the density of Canny's edges, by cell and by row."""
    found = cv2.Canny(cv2.cvtColor(frames[1], cv2.COLOR_BGR2GRAY), 60, 150)
    return np.concatenate([_cells(found), _cells(found, 1, 24)])


def corners(frames: Frames) -> Values:
    """Return the number of corners, by cell."""
    found = cv2.goodFeaturesToTrack(_gray(frames), 300, 0.02, 3)
    x, y = np.reshape([] if found is None else found, (-1, 2)).T
    counts: Values = np.histogram2d(y, x, (6, 8), ((0, 240), (0, 320)))[0]
    return counts.ravel()


def contours(frames: Frames) -> Values:
    """Return area, perimeter and bounding box of the six largest contours, as logarithms."""
    dark = cv2.adaptiveThreshold(_gray(frames), 255, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, 51, 10)
    outlines, _ = cv2.findContours(dark, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    largest = sorted(((cv2.contourArea(outline), number) for number, outline in enumerate(outlines)), reverse=True)[:6]
    found = np.zeros((6, 6))
    for row, (area, number) in zip(found, largest, strict=False):
        row[:] = area, cv2.arcLength(outlines[number], True), *cv2.boundingRect(outlines[number])
    return np.log1p(found).ravel()


def spectrum(frames: Frames) -> Values:
    """Return the energy of 24 bands of spatial frequency."""
    energy = np.abs(np.fft.rfft2(_gray(frames)))
    radius = np.hypot(np.fft.fftfreq(240)[:, None], np.fft.rfftfreq(320))
    bands = np.minimum((radius * 48).astype(int), 23).ravel()
    return np.log1p(np.bincount(bands, energy.ravel(), 24) / np.bincount(bands, minlength=24))


_GABOR = [cv2.getGaborKernel((15, 15), 3.0, angle, 8.0, 0.8) for angle in np.arange(6) * np.pi / 6]


def gabor(frames: Frames) -> Values:
    """Return the response to six orientations, by cell."""
    gray = _gray(frames)
    return np.concatenate([_cells(np.abs(cv2.filter2D(gray, cv2.CV_32F, kernel)), 6, 4) for kernel in _GABOR])


def flow(frames: Frames) -> Values:
    """Return the dense optical flow since the previous frame, by cell."""
    found = cv2.calcOpticalFlowFarneback(_gray(frames, which=0), _gray(frames), None, 0.5, 3, 15, 2, 5, 1.2, 0)
    return _cells(found)


def patterns(frames: Frames) -> Values:
    """Return a histogram of local binary patterns for each of 4 x 3 parts."""
    codes = np.asarray(local_binary_pattern(_gray(frames), 8, 1, "uniform"), dtype=np.intp)
    parts = codes.reshape(3, 80, 4, 80).swapaxes(1, 2).reshape(12, -1)
    return np.concatenate([np.bincount(part, minlength=10) for part in parts]) / parts.shape[1]


def textures(frames: Frames) -> Values:
    """Return statistics of the grey levels of neighbouring pixels, for each of 3 x 2 parts."""
    levels = _gray(frames) // 8
    found = []
    for part in (levels[y : y + 120, x : x + 106] for y in (0, 120) for x in (0, 106, 212)):
        counts = graycomatrix(part, [1, 4], [0, np.pi / 2], 32, symmetric=True, normed=True)
        found += [graycoprops(counts, name).ravel() for name in ("contrast", "homogeneity", "energy")]
    return np.concatenate(found)


def shapes(frames: Frames) -> Values:
    """Return histograms of oriented gradients, of 10 x 7 cells."""
    return np.asarray(hog(_gray(frames), 8, (32, 32), (1, 1)))


_QUICK = [pixels, colours, difference, gradients, edges, corners, contours, spectrum]
EXTRACTORS: dict[str, Callable[[Frames], Values]] = {
    extractor.__name__: extractor for extractor in (*_QUICK, gabor, flow, patterns, textures, shapes)
}
