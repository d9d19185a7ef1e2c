"""A pipeline as for a camera: computes one group after the other, and sends each."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from anytime.inference.prediction import Answer
from anytime_service.client.messages import Reply, decode_reply, encode_values
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.schemas.messages import BeginFrame, EndFrame, PackedGroupFrame
from benchmarks.load.frames import WebSocketClient, binary


class Pipeline:
    """One thread, one WebSocket, no margins: the answer is sent at the deadline, and read after each group.

    The group in progress is still computed to its end and sent, too late to be used: its time is data for the service.

    Parameters
    ----------
    order : groups in the order in which they are computed.
    """

    def __init__(self, port: int, order: Sequence[str], extractors: Mapping[str, Callable[[Any], Any]]) -> None:
        self._client = WebSocketClient(port, "/stream")
        self._order = tuple(order)
        self._extractors = extractors
        self._next = 0

    def predict(self, x: Any, deadline_ms: float) -> Answer:
        """Compute groups of `x` until the answer is received."""
        name = self._next
        self._next += 1
        self._send(BeginFrame(id=name, deadline_ms=deadline_ms))
        for group in self._order:
            begin = time.perf_counter()
            values = self._extractors[group](x)
            took_ms = (time.perf_counter() - begin) * 1e3
            encoded = encode_values(group, values)
            self._send(PackedGroupFrame(name, group, encoded.values, took_ms, encoded.dtype))
            if select.select([self._client.sock], [], [], 0)[0]:
                break
        else:
            self._send(EndFrame(name))
        while True:
            for frame in self._client.frames():
                reply = decode_reply(frame)
                if reply is not None and reply[1] == name and isinstance(reply[2], Answer):
                    return reply[2]
                self._check(reply)

    def close(self) -> None:
        self._client.close()

    def _send(self, frame: BeginFrame | PackedGroupFrame[msgspec.Raw] | EndFrame) -> None:
        self._client.sock.sendall(binary(MSGPACK.encode(frame)))

    @staticmethod
    def _check(reply: Reply | None) -> None:
        """Raise a refusal; an `end` that crosses an answer is not one."""
        if reply is not None and isinstance(reply[2], Exception):
            raise reply[2]
