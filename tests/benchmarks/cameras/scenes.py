"""Scenes with an obstacle in front of a camera, rendered from a seed.

A frame is 640 x 480, 8 bits, blue, green and red. The input of the extractors is a pair of frames, 40 ms apart, in which
the camera approaches an obstacle: a striped box on the ground. Its distance is the target. Textured clutter, a light
that differs from scene to scene, and the noise of the sensor make that difficult.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["HEIGHT", "PERIOD_MS", "WIDTH", "Frames", "clip", "pair"]

Frames = NDArray[np.uint8]
"""Previous and current frame, (2, 480, 640, 3)."""

WIDTH, HEIGHT = 640, 480
PERIOD_MS = 40.0
"""Time between two frames."""

NEAREST_M, FARTHEST_M = 2.0, 25.0
FOCAL = 500.0
"""Pixels per metre at a distance of one metre."""

HORIZON = 200
CAMERA_M = 1.2
"""Height of the camera above the ground."""

_NOISE = np.random.default_rng(0).standard_normal((HEIGHT + 100, WIDTH + 100, 3), dtype=np.float32)
"""Noise of the sensor; each frame has another part of it."""


class _Scene:
    """What stays the same in all frames of a scene."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.speed = rng.uniform(2.0, 15.0)  # m/s
        self.distance = float(np.exp(rng.uniform(np.log(NEAREST_M), np.log(FARTHEST_M))))
        self._size_m = rng.uniform(0.8, 1.2), rng.uniform(1.2, 1.8)
        self._aside_m = rng.uniform(-0.5, 0.5)
        self._stripes = rng.integers(0, 120, 3), rng.integers(130, 255, 3)
        sky, ground = rng.uniform(120, 220, 3), rng.uniform(60, 140, 3)
        background = np.empty((HEIGHT, WIDTH, 3), np.float32)
        background[:HORIZON], background[HORIZON:] = sky, ground
        for cell, strength in ((64, 25.0), (8, 12.0)):
            coarse = rng.normal(0, strength, (HEIGHT // cell + 1, WIDTH // cell + 1, 3)).astype(np.float32)
            background += cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
        for _ in range(int(rng.integers(4, 14))):
            self._add_clutter(background)
        self._background = np.clip(background, 0, 255).astype(np.uint8)
        light = np.linspace(*rng.uniform(0.6, 1.2, 2), WIDTH, dtype=np.float32)
        self._light = np.repeat((rng.uniform(0.7, 1.1) * light)[None, :, None], HEIGHT, 0).repeat(3, 2)
        self._noise = np.float32(rng.uniform(2, 6))

    def _add_clutter(self, image: NDArray[np.float32]) -> None:
        """Draw a circle or a rectangle with a texture."""
        rng = self.rng
        (x, y), radius = rng.integers(0, (WIDTH, HEIGHT)), int(rng.integers(10, 50))
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        if rng.random() < 0.5:
            cv2.circle(mask, (int(x), int(y)), radius, 1, -1)
        else:
            cv2.rectangle(mask, (int(x), int(y)), (int(x) + radius, int(y) + 2 * radius), 1, -1)
        inside = mask.astype(bool)
        texture = rng.uniform(0, 200, 3) + rng.normal(0, 20, (int(inside.sum()), 1))
        image[inside] = texture

    def frame(self, distance: float) -> NDArray[np.uint8]:
        """Return the frame at a distance in metres."""
        image = self._background.copy()
        scale = FOCAL / distance
        width, height = (max(int(size * scale), 2) for size in self._size_m)
        bottom = HORIZON + int(CAMERA_M * scale)
        left = WIDTH // 2 + int(self._aside_m * scale) - width // 2
        for stripe in range(8):
            ends = [bottom - height * part // 8 for part in (stripe + 1, stripe)]
            colour = [int(value) for value in self._stripes[stripe % 2]]
            cv2.rectangle(image, (left, ends[0]), (left + width, ends[1]), colour, -1)
        y, x = self.rng.integers(0, 100, 2)
        noisy = image * self._light + self._noise * _NOISE[y : y + HEIGHT, x : x + WIDTH]
        return np.clip(noisy, 0, 255).astype(np.uint8)


def clip(seed: int, frames: int) -> Iterator[tuple[Frames, float]]:
    """Yield consecutive pairs of a scene, each with the logarithm of the distance in the current frame."""
    scene = _Scene(seed)
    step = scene.speed * PERIOD_MS / 1e3
    distances = [max(scene.distance - step * number, NEAREST_M / 2) for number in range(-1, frames)]
    images = [scene.frame(distance) for distance in distances]
    for number, distance in enumerate(distances[1:]):
        yield np.stack(images[number : number + 2]), float(np.log(distance))


def pair(seed: int) -> tuple[Frames, float]:
    """Return the first pair of a scene, and the logarithm of its distance."""
    return next(clip(seed, 1))
