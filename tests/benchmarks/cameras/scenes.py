"""Scenes with an obstacle in front of a camera, rendered from a seed.

The input of the extractors is a pair of frames, 40 ms apart, in which the camera approaches an obstacle: a striped box
on the ground. Its distance is the target. Textured clutter, a light that differs from scene to scene, and the noise of
the sensor make it difficult.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

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
