"""What is measured as text for Prometheus, written in slices so that no answer waits for a scrape.

A service of many models and groups has tens of thousands of lines, which take hundreds of milliseconds. A thread would
not help: it holds the interpreter for 5 ms at a time. So the event loop writes a few lines a turn, with the encoders of
Prometheus' own library.
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
"""How long one turn of the loop is taken for; a piece more may be under way by then."""

AT_A_TIME = 24
"""Lines of a piece, .1 to .3 ms of work."""

_END = b"# EOF\n"


class Exposition:
    """Writes what a registry has, and what tells of the process.

    Parameters
    ----------
    registry : collected in the event loop, one collector after another.
    beside : collectors that ask the system; they are collected in a thread, as some list every open file.
    """

    def __init__(self, registry: CollectorRegistry, beside: Iterable[Collector] = ()) -> None:
        self._registry = registry
        self._beside = tuple(beside)
        self._lock = asyncio.Lock()

    async def write(self, accept: str) -> tuple[bytes, str]:
        """Everything, in the form that an `Accept` header asks for, and its media type.

        One scrape is written at a time: many at once would make the turns of the loop long together.
        """
        encode, media_type = choose_encoder(accept)
        async with self._lock:
            system = await asyncio.to_thread(lambda: [metric for each in self._beside for metric in each.collect()])
            written: list[bytes] = []
            slice_ends = now_ms() + SLICE_MS
            for text in _pieces(encode, self._registry.collect(), system):
                written.append(text)
                if now_ms() > slice_ends:
                    await asyncio.sleep(0)
                    slice_ends = now_ms() + SLICE_MS
        return b"".join(written), media_type


class _Piece:
    """Some samples of a family, as the encoders take them."""

    def __init__(self, family: Metric, samples: list[Sample]) -> None:
        self._piece = Metric(family.name, family.documentation, family.type, family.unit)
        self._piece.samples = samples

    def collect(self) -> list[Metric]:
        """The one family."""
        return [self._piece]


def _pieces(encode: Callable[[Collector], bytes], *sources: Iterable[Metric]) -> Iterator[bytes]:
    """Text of a few samples at a time; families come together, so that only their first piece has the head."""
    told = None
    end = b""
    for source in sources:
        for family in source:
            # When each series was begun is of no use to Prometheus, and would be as many lines again.
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            for start in range(0, max(len(samples), 1), AT_A_TIME):
                text = encode(_Piece(family, samples[start : start + AT_A_TIME]))
                if text.endswith(_END):
                    text, end = text[: -len(_END)], _END
                yield _without_head(text) if family.name == told else text
                told = family.name
    yield end


def _without_head(text: bytes) -> bytes:
    start = 0
    while text.startswith(b"# ", start):
        start = text.index(b"\n", start) + 1
    return text[start:]
