"""Prediction service that all transports share: it opens, admits and drains predictions.

A transport opens a prediction with the options of the request and with a sink, and passes on the events that it
receives: groups, amended options, the end. The deadline timer, the solver and the drain of a stopping server produce
the other events. The sink receives updates, and then exactly one answer or error, from within the event that ends the
prediction or, if the worker makes the answer, after it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from anytime._files import memory_limit
from anytime.inference.prediction import Prediction
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import LEAD_MS, ActivePrediction, Resources, Sink
from anytime_service.core.open_prediction import Limits
from anytime_service.core.solver import Solver
from anytime_service.errors import OverloadedError, UnknownModelError
from anytime_service.keys import KeyRing
from anytime_service.limits.admission import Admission, LoopMonitor
from anytime_service.limits.memory import Account, Accounts, MemoryBudget
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.limits.table import INLINE
from anytime_service.limits.tuning import TUNING, Tuning
from anytime_service.limits.turns import Turns
from anytime_service.limits.worker import Worker
from anytime_service.models.registry import ModelRegistry, reloaded
from anytime_service.schemas.messages import ListLimits
from anytime_service.schemas.options import PredictionOptions
from anytime_service.settings import Settings
from anytime_service.telemetry.metrics import Metrics
from anytime_service.telemetry.records import SessionTimings
from anytime_service.telemetry.tracing import Tracing

_log = logging.getLogger("anytime_service")


class PredictionService(Resources):
    """Service that opens predictions under its limits, and ends them when it drains; a reload replaces `registry`.

    `turns` hands out the time of the loop.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        settings: Settings,
        tracing: Tracing | None = None,
        keys: KeyRing | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.tuning = tuning
        self.tracing = tracing
        self.metrics = metrics = Metrics()
        metrics.set_served(registry.every())
        self.session_timings = SessionTimings(settings.max_sessions)
        self.solver = Solver(settings.max_solve_ms, tuning)
        self.worker = Worker(metrics.shed.labels("refused", "pages").inc)
        self.active: set[ActivePrediction] = set()
        self.list_limits = ListLimits(settings.max_json_bytes, settings.max_json_values)
        self.limits = Limits(settings.max_deadline_ms, settings.max_rows, int(INLINE), tuning.max_contributions)
        self.draining = False
        self.admission = Admission(settings.max_lateness_ms, lambda: len(self.active), lambda: self._monitor.start())  # noqa: PLW0108  (made below)
        self.memory = MemoryBudget(settings.max_held_bytes, metrics.shed.labels("refused", "memory").inc)
        self.accounts = Accounts(self.memory, settings.max_share_per_key, keys)
        self.turns = Turns()
        self.turn = self.turns.turn
        self.slices = self.turns.slices
        lead_s = max(settings.max_deadline_ms - LEAD_MS, 0.0) / 1000.0
        self.without_deadline = TimeoutQueue(lead_s, ActivePrediction.start_timer)
        self._times = {}
        self._reloading = asyncio.Lock()
        self._monitor = LoopMonitor(self.admission.record_cycle)
        self._shed = {how: metrics.shed.labels(how, "lateness") for how in ("refused", "prior")}
        metrics.open.set_function(lambda: len(self.active))
        metrics.held_bytes.set_function(lambda: self.memory.bytes)
        metrics.memory_limit.set(memory_limit() or 0)
        metrics.predicted_lateness.set_function(lambda: self.admission.predicted_ms(now_ms()) / 1000.0)

    @property
    def unready(self) -> str | None:
        """Why the service begins no predictions, for every route that reports readiness; None if it begins them."""
        if self.draining:
            return "the service is stopping"
        return None if len(self.registry) else "no model is loaded"

    def open(
        self,
        options: PredictionOptions,
        begun_ms: float,
        sink: Sink,
        *,
        shared: Prediction | None = None,
        admitted: bool = True,
        account: Account | None = None,
    ) -> ActivePrediction:
        """Open a prediction; this may send the answer to the sink before it returns.

        Raise UnknownModelError, FieldError if an option is invalid, and OverloadedError if the server cannot answer in
        time, too many predictions are open, or the service is stopping.

        Parameters
        ----------
        begun_ms : float
            Time of the request, from which its deadline counts.
        shared : Prediction | None
            The groups of a session.
        admitted : bool
            What `admits` returned for this request.
        """
        account = account or self.accounts.anonymous
        self.check_capacity(account)
        if not admitted:
            self.shed("prior" if options.overload == "prior" else "refused")
            if options.overload != "prior":
                raise self.overloaded()
        model = shared.model if shared is not None else self.registry.get(options.model)
        if shared is not None and not admitted:
            shared = Prediction(model, shared.rows)  # the same number of rows, no groups
        return ActivePrediction(self, model, options, begun_ms, sink, account, shared, overloaded=not admitted)

    def admits(self, now_ms: float, decided: bool | None = None) -> bool:
        """Return whether a prediction requested now begins: once for each, `decided` if the server did so before."""
        return self.admission.admits(now_ms) if decided is None else decided

    def check_capacity(self, account: Account) -> None:
        """Raise OverloadedError if the service, or the key of an account, may not open more predictions."""
        if account.share_exhausted(len(account.active), self.settings.max_open):
            self.metrics.shed.labels("refused", "open").inc()
            raise account.share_error(len(account.active), self.settings.max_open, "open predictions")
        if self.draining or len(self.active) >= self.settings.max_open:
            self.metrics.shed.labels("refused", "stopping" if self.draining else "open").inc()
            why = "the service is stopping" if self.draining else f"{len(self.active)} predictions are open already"
            raise OverloadedError(f"{why}; retry in a second, or use another replica")

    def shed(self, how: Literal["refused", "prior"]) -> None:
        """Count a prediction that was not admitted because of its predicted lateness: "prior" got the base rate."""
        self._shed[how].inc()

    def overloaded(self, retry_after_s: int | None = None) -> OverloadedError:
        """Return the error for a prediction that was not admitted because of its predicted lateness."""
        seconds = retry_after_s or self.admission.retry_after_s(now_ms())
        after = "a second" if seconds == 1 else f"{seconds} seconds"
        return OverloadedError(
            f"the server has more requests than it can answer in time; retry in {after}, use another replica, or set"
            " overload=prior for the base rate",
            retry_after_s=seconds,
        )

    async def reload(self, name: str | None = None, *, force: bool = False) -> None:
        """Reload models in a thread, and log it in one line; open predictions continue with their models.

        Raises as `registry.reloaded`.
        """
        async with self._reloading:
            before = {model.name: model.version for model in self.registry}
            try:
                self.registry = await asyncio.to_thread(reloaded, self.registry, name, force=force)
            except UnknownModelError:  # a mistake of the client, which reloads nothing
                raise
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                what = "the models" if name is None else f"model {name!r}"
                _log.error("could not reload %s; the previous ones stay in use: %s", what, error)
                raise
            self.metrics.reloads.labels("ok").inc()
            self.metrics.set_served(self.registry.every())
            changes = (
                f"{model.name!r} {before.get(model.name, 'none')} -> {model.version}"
                for model in self.registry
                if name in (None, model.name)
            )
            _log.info("models reloaded: %s", ", ".join(changes))

    def drain(self) -> None:
        self.draining = True
        for active in tuple(self.active):
            active.drain()
