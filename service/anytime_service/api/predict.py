"""`POST /predict`: one prediction from one body. The server answers at the deadline even if the body has not ended.

A body of JSON or MessagePack counts when it is complete. In a body of lines, each line is a group, and counts as soon
as it is received. A line received after the answer still contributes to the measured group costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from starlette.types import Scope

from anytime.inference.prediction import Prediction
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.core.open_prediction import check_same_rows, checked_groups
from anytime_service.core.service import PredictionService
from anytime_service.errors import BodyTooLargeError, FieldError, OverloadedError
from anytime_service.http.exchange import Exchange, admission_of
from anytime_service.http.options import Head, body_limit, read_head
from anytime_service.http.responses import Endpoint, answer_callbacks
from anytime_service.limits.turns import AT_ONCE
from anytime_service.schemas.codecs import JSON, too_large
from anytime_service.schemas.options import OF_THE_HEAD, PARAMETERS, PredictionOptions, completed
from anytime_service.schemas.predict import Received, read_late_line, read_line, read_request, received
from anytime_service.schemas.values import count_rows, received_values

LONG, MANY = 256 * 1024, 100  # bytes, and packed groups, of a body that is added in several turns of the event loop


class Lines:
    """Reader of the lines of one request."""

    def __init__(self, exchange: Exchange, active: ActivePrediction, service: PredictionService) -> None:
        self._exchange = exchange
        self._active = active
        self._service = service
        self._number = 0
        self._tail = bytearray()
        self._late_remaining = len(active.model.places)  # limits the work for a client that never stops sending

    async def read(self) -> None:
        exchange, active = self._exchange, self._active
        exchange.rest = self._read_late
        async for chunk in exchange.body():
            after_one = self._service.slices()
            for line in self._split(chunk):
                if active.answered:
                    self._record_late(line)
                else:
                    await self._add_line(line)
                await after_one()
            self._check_length(self._tail)
        if exchange.ended and not active.answered:
            await self._add_line(bytes(self._tail))
            if not active.answered:
                active.end()

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that this chunk completes, each when it is needed."""
        end = chunk.find(b"\n")
        end += len(self._tail) if end >= 0 else 0
        self._tail += chunk
        received, begun = self._tail, 0
        if end >= 0:
            self._tail = received[received.rfind(b"\n") + 1 :]
        self._exchange.retain(len(self._tail))
        while end >= 0:
            yield bytes(received[begun:end])
            begun, end = end + 1, received.find(b"\n", end + 1)

    async def _add_line(self, content: bytes) -> None:
        self._number += 1
        self._check_length(content)
        if not content.strip():
            return
        active, settings = self._active, self._service.settings
        try:
            await self._service.turn(len(content))
            line = read_line(content, self._number, self._service.list_limits)
            values = received_values(active.model, line.group, line.values, None, settings.max_rows)
            if active.answered:  # its deadline expired before its turn
                active.record.timings.received_late(line.group, now_ms(), line.took_ms, partial(count_rows, values))
            else:
                active.group(line.group, values, line.took_ms)
        except FieldError as error:
            raise FieldError(error.field, f"line {self._number}: {error}") from error

    def _check_length(self, line: bytes | bytearray) -> None:
        limit = self._service.settings.max_json_bytes
        if len(line) > limit:
            raise too_large(f"a line has more than {limit} bytes", limit)

    def _read_late(self, chunk: bytes) -> None:
        """Record the group timings of lines that arrive after the answer."""
        if self._late_remaining:
            try:
                for line in self._split(chunk):
                    self._record_late(line)
                self._check_length(self._tail)
            except (OverloadedError, BodyTooLargeError):  # the answer does not need these lines
                self._late_remaining = 0
                self._tail.clear()
            if self._exchange.ended:
                self._record_late(bytes(self._tail))

    def _record_late(self, content: bytes) -> None:
        if self._late_remaining and content.strip():
            self._late_remaining -= 1
            line = read_late_line(content)
            if line is not None:
                limit, timings = self._service.settings.max_rows, self._active.record.timings
                timings.received_late(line.group, now_ms(), line.took_ms, lambda: min(count_rows(line.values), limit))


class Predict(Endpoint):
    """`POST /predict`."""

    parameters = PARAMETERS

    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        begun = now_ms()
        service = self.service
        decided, store = admission_of(scope)
        head = read_head(scope, service.settings, self.parameters)
        exchange.limit_to(*body_limit(head.form, service.settings, lines=head.lines))
        send_answer, send_error, encode = answer_callbacks(exchange, head.reply_form, store)
        account, admitted = service.accounts.of(scope), service.admits(begun, decided)

        def begin(options: PredictionOptions, shared: Prediction | None = None) -> ActivePrediction:
            active = service.open(
                options,
                begun,
                send_answer,
                send_error,
                shared=shared,
                admitted=admitted,
                account=account,
                encode=encode,
            )
            predictions.append(active)
            return active

        active = begin(head.options)
        if head.lines:  # even if answered: late lines contribute to the group timings
            await Lines(exchange, active, service).read()
        elif not active.answered:
            await self._read_body(exchange, active, head, begin)

    async def _read_body(
        self, exchange: Exchange, active: ActivePrediction, head: Head, begin: Callable[..., ActivePrediction]
    ) -> None:
        content = await exchange.read_all()
        if active.answered or not exchange.ended:
            return
        if len(content) > AT_ONCE:
            await self.service.turn(len(content))
        if active.answered:  # its deadline expired before its turn
            return
        request = read_request(head.form, content, self.service.list_limits)
        options = completed(head.options, request, OF_THE_HEAD)
        self.service.check_rows(options.rows)
        groups = received(active.model, request.groups, self.service.settings.max_rows)
        if options is not head.options:
            active.drop()
            active = begin(options, Prediction(active.model, options.rows))
        if len(content) > LONG or (len(groups) > MANY and head.form is not JSON):
            await self._add_in_slices(active, groups, exchange.ended_ms)
        elif not active.answered:
            # The groups arrived when the body ended, however long the conversion took.
            active.groups(groups, exchange.ended_ms)
        if not active.answered:
            active.end()

    async def _add_in_slices(self, active: ActivePrediction, groups: Received, ended_ms: float) -> None:
        """Check all groups and then add them, as many in a turn of the loop as fit in its time."""
        rows: dict[str, int] = {}
        after_one = self.service.slices()
        for adds in (False, True):
            for name, values in groups.items():
                if active.answered:
                    return
                if adds:
                    active.groups({name: values}, ended_ms)
                else:
                    rows[name] = len(checked_groups(active.machine.prediction, {name: values})[name])
                await after_one()
            check_same_rows(rows)
