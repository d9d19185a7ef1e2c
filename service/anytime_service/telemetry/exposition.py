"""Exposition of the metrics as text for Prometheus, written in slices so that no answer waits for a scrape.

A service with many models and groups exposes tens of thousands of lines, which take hundreds of milliseconds to write.
A thread would not help, because it holds the interpreter for 5 ms at a time. Therefore the event loop writes a few
lines per turn, with the encoders of the Prometheus client library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from anytime_service.clock import now_ms

__all__ = [
    "AT_A_TIME",
    "SLICE_MS",
    "Exposition",
]

SLICE_MS = 0.2
"""Time that one turn of the event loop may spend on writing, in ms; the current piece is completed."""

AT_A_TIME = 24
"""Samples per piece; writing them takes 0.1 to 0.3 ms."""

_END = b"# EOF\n"


class Exposition:
    """Writer of the metrics of a registry and of the process.

    Parameters
    ----------
    registry : collected in the event loop, one collector after another.
    system : collectors that query the operating system; they run in a thread, since some list every open file.
    """

    def __init__(self, registry: CollectorRegistry, system: Iterable[Collector] = ()) -> None:
        self._registry = registry
        self._system = tuple(system)
        self._lock = asyncio.Lock()

    async def write(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format that the `Accept` header requests, and the media type.

        Scrapes are written one at a time; several at once would add up to long turns of the event loop.
        """
        encode, media_type = choose_encoder(accept)
        async with self._lock:
            system = await asyncio.to_thread(lambda: [metric for each in self._system for metric in each.collect()])
            written: list[bytes] = []
            slice_ends = now_ms() + SLICE_MS
            for text in _pieces(encode, self._registry.collect(), system):
                written.append(text)
                if now_ms() > slice_ends:
                    await asyncio.sleep(0)
                    slice_ends = now_ms() + SLICE_MS
        return b"".join(written), media_type


class _Piece:
    """Collector of some samples of one metric family, as the encoders expect it."""

    def __init__(self, family: Metric, samples: list[Sample]) -> None:
        self._piece = Metric(family.name, family.documentation, family.type, family.unit)
        self._piece.samples = samples

    def collect(self) -> list[Metric]:
        """Return the family."""
        return [self._piece]


def _pieces(encode: Callable[[Collector], bytes], *sources: Iterable[Metric]) -> Iterator[bytes]:
    """Yield the text of a few samples at a time; only the first piece of a family has the HELP and TYPE lines."""
    last_family = None
    end = b""
    for source in sources:
        for family in source:
            # Prometheus does not use the creation times of series, which would double the number of lines.
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            for start in range(0, max(len(samples), 1), AT_A_TIME):
                text = encode(_Piece(family, samples[start : start + AT_A_TIME]))
                if text.endswith(_END):
                    text, end = text[: -len(_END)], _END
                yield _without_head(text) if family.name == last_family else text
                last_family = family.name
    yield end


def _without_head(text: bytes) -> bytes:
    start = 0
    while text.startswith(b"# ", start):
        start = text.index(b"\n", start) + 1
    return text[start:]
