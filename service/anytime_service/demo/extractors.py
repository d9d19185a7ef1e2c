"""Feature extractors for handwritten digits (8 x 8 pixels of 0..16), from microseconds to milliseconds.

The first extractor reads the 8 x 8 pixels. The others imitate a vision pipeline behind a camera: they work on the image
interpolated to 64 x 64 pixels of 0..1 by cubic splines. Each extractor is a function of the image alone, at the top
level of this module, so that a worker process can import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy import fft, ndimage

from anytime._linalg import single_blas_thread
from anytime.costs.distributions import priced
from anytime.costs.profiling import profile
from anytime.groups import FeatureGroups, load_groups
from anytime.types import Float

Extractor: TypeAlias = Callable[[Float], Float]

SIDE, WHITE = 8, 16.0
CAMERA = 64

# Interpolation by cubic splines is linear, so its matrix is the image of the identity.
_UPSCALE: Float = np.asarray(ndimage.zoom(np.eye(SIDE), (CAMERA / SIDE, 1), order=3, mode="nearest", grid_mode=True))
_PIXEL = np.arange(SIDE) - (SIDE - 1) / 2.0


def camera(image: Float) -> Float:
    """Interpolate an (8, 8) image to (64, 64), 0 to 1."""
    return np.clip((_UPSCALE @ image @ _UPSCALE.T) / WHITE, 0.0, 1.0)


def intensity(image: Float) -> Float:
    """Measure ink, contrast and centre of gravity: 4 numbers."""
    rows, columns = image.sum(axis=1), image.sum(axis=0)
    ink = rows.sum() + 1e-9
    y, x = rows @ _PIXEL / ink, columns @ _PIXEL / ink
    return np.array([ink / image.size, image.std(), y, x])


def projections(image: Float) -> Float:
    """Sum strips of rows and columns: 8 numbers."""
    large = camera(image)
    return np.concatenate([large.sum(axis=axis).reshape(4, -1).mean(axis=1) for axis in (1, 0)])


def frequencies(image: Float) -> Float:
    """Compute the 3 x 3 lowest coefficients of the cosine transform: 9 numbers."""
    return np.ravel(fft.dctn(camera(image), norm="ortho")[:3, :3])


def topology(image: Float) -> Float:
    """Count strokes and holes at three thresholds, and measure the largest hole: 21 numbers."""
    large = np.pad(camera(image), 1)
    return np.concatenate([_regions(large > threshold) for threshold in (0.3, 0.5, 0.7)])


def _regions(ink: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Float:
    """Return the strokes, holes and ink area, and the largest hole's area, centre and share of all holes."""
    _, strokes = ndimage.label(ink, structure=np.ones((3, 3)))
    paper, regions = ndimage.label(~ink)
    # The border is paper, so the first region, which starts in the corner, is the outside.
    holes = regions - 1
    if holes == 0:
        return np.array([strokes, 0.0, ink.mean(), 0.0, 0.0, 0.0, 0.0])
    areas = np.bincount(paper.ravel(), minlength=regions + 1)[2:]
    largest = int(areas.argmax())
    y, x = ndimage.center_of_mass(paper == largest + 2)
    area, middle = areas[largest], ink.shape[0] / 2.0
    centre = y / middle - 1, x / middle - 1
    return np.array([strokes, holes, ink.mean(), area / ink.size, *centre, area / areas.sum()])


def strokes(image: Float) -> Float:
    """Measure stroke widths in 4 x 4 zones, and how often scan lines cross a stroke: 48 numbers."""
    ink = camera(image) > 0.4
    width = ndimage.distance_transform_edt(ink)
    gap = ndimage.distance_transform_edt(~ink)
    padded = np.pad(ink, 1).astype(np.int8)
    across = (np.diff(padded[1:-1], axis=1) == 1).sum(axis=1)
    down = (np.diff(padded[:, 1:-1], axis=0) == 1).sum(axis=0)
    crossings = (each.reshape(8, -1).mean(axis=1) for each in (across, down))
    return np.concatenate([_zones(width, 4), _zones(gap, 4), *crossings])


def _zones(values: Float, count: int) -> Float:
    """Return the means over count x count zones."""
    size = len(values) // count
    return np.ravel(values.reshape(count, size, count, size).mean(axis=(1, 3)))


CELLS, ORIENTATIONS = 5, 8
_STRIP = np.arange(CAMERA) * CELLS // CAMERA
_CELL = (_STRIP[:, np.newaxis] * CELLS + _STRIP) * ORIENTATIONS


def gradients(image: Float) -> Float:
    """Count gradient orientations in 5 x 5 cells (Dalal and Triggs, 2005), as shares of the total: 200 numbers."""
    large = ndimage.gaussian_filter(camera(image), 3.0)
    dy, dx = ndimage.sobel(large, axis=0), ndimage.sobel(large, axis=1)
    strength = np.hypot(dy, dx)
    turn = np.mod(np.arctan2(dy, dx) / (2 * np.pi), 1.0) * ORIENTATIONS
    lower = np.floor(turn)
    share = turn - lower
    bins = _CELL + np.mod([lower, lower + 1], ORIENTATIONS).astype(np.intp)
    weights = strength * np.array([1.0 - share, share])
    counts = np.bincount(bins.ravel(), weights.ravel(), minlength=_CELL.max() + ORIENTATIONS)
    shares: Float = counts / (counts.sum() + 1e-9)
    return np.sqrt(shares)


PADDED = 96


def _gabor_bank() -> np.ndarray[tuple[int, int, int], np.dtype[np.complex128]]:
    """Return Gabor filters of 6 orientations and 2 wavelengths, as transfer functions on the padded grid."""
    y, x = np.mgrid[0:PADDED, 0:PADDED]
    y, x = (y + PADDED // 2) % PADDED - PADDED // 2, (x + PADDED // 2) % PADDED - PADDED // 2
    wavelength, angle = (each.reshape(-1, 1, 1) for each in np.meshgrid([10.0, 18.0], np.arange(6) * np.pi / 6))
    envelope = np.exp(-(x**2 + y**2) / (2.0 * (0.4 * wavelength) ** 2))
    envelope /= envelope.sum(axis=(1, 2), keepdims=True)
    wave = envelope * np.exp(2j * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / wavelength)
    # Subtract the mean, so that a uniform surface has no energy.
    return np.asarray(fft.fft2(wave - envelope * wave.sum(axis=(1, 2), keepdims=True)))


_GABOR = _gabor_bank()


def texture(image: Float) -> Float:
    """Measure the energy of 12 Gabor filters in 4 x 4 zones: 192 numbers."""
    spectrum = fft.fft2(camera(image), (PADDED, PADDED))
    return np.concatenate([_zones(np.abs(fft.ifft2(spectrum * each)[:CAMERA, :CAMERA]), 4) for each in _GABOR])


def radon(image: Float) -> Float:
    """Project along 12 directions (the Radon transform), in 8 bins each: 96 numbers."""
    large = camera(image)
    turned = (ndimage.rotate(large, angle, reshape=False, order=1) for angle in range(0, 180, 15))
    return np.concatenate([each.sum(axis=0).reshape(8, -1).mean(axis=1) for each in turned])


EXTRACTORS: dict[str, Extractor] = {  # in roughly increasing cost
    extract.__name__: extract
    for extract in (intensity, projections, frequencies, topology, strokes, gradients, texture, radon)
}


def feature_table(images: Float) -> tuple[Float, FeatureGroups]:
    """Return all groups of images (n, 8, 8): the table (n, D), and the groups with their costs in ms, measured here."""
    with single_blas_thread():
        blocks = {name: np.array([extract(image) for image in images]) for name, extract in EXTRACTORS.items()}
    described = [
        {"name": name, "features": [f"{name}_{i}" for i in range(block.shape[1])], "cost": 1.0}
        for name, block in blocks.items()
    ]
    groups = load_groups({"cost_unit": "ms", "groups": described})
    times = profile(groups, EXTRACTORS, list(images[:40])).times
    return np.hstack(list(blocks.values())), priced(
        groups, {name: float(np.median(took)) for name, took in times.items()}
    )
