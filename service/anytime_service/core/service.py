"""What every transport shares: a prediction that is open, its alarm, and the answer that leaves in time.

A transport opens a prediction with what was asked and two callables, one for the answer and one for updates. It hands
on the events that come by its wire; the alarm, the solver and the drain of a server that stops bring the others. The
answer is told once, from inside whichever of them brought it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, get_args

from anytime.inference.prediction import Prediction
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction, AnswerCallback, Ask, Context
from anytime_service.core.open_prediction import OpenPrediction
from anytime_service.core.solver import Solver
from anytime_service.errors import FieldError, OverloadedError
from anytime_service.keys import KeyRing
from anytime_service.limits.admission import Admission, LoopMonitor
from anytime_service.limits.memory import Account, Accounts, Held
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.models.registry import ModelRegistry, reloaded
from anytime_service.settings import Settings
from anytime_service.telemetry.group_timings import SessionTimings
from anytime_service.telemetry.metrics import Metrics
from anytime_service.telemetry.tracing import Tracing

__all__ = [
    "How",
    "PredictionService",
]

How = Literal["refused", "prior"]
"""What becomes of a prediction that is not begun."""


class PredictionService:
    """Opens predictions, under the limits of one service, and ends them when it drains.

    Parameters
    ----------
    registry : the models to answer from; may be replaced by another at any time.
    tracing : makes the spans of predictions, where they are wanted.
    keys : the configured keys, of which one may use no more than its share of the limits.
    """

    def __init__(
        self, registry: ModelRegistry, settings: Settings, tracing: Tracing | None = None, keys: KeyRing | None = None
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.tracing = tracing
        self.signals = Metrics()
        self.signals.serves(registry.every())
        self.session_laps = SessionTimings(settings.max_sessions)
        self.solver = Solver(settings.max_solve_ms)
        self.live: set[ActivePrediction] = set()
        self.converting = asyncio.Lock()
        """Held while a long body or message is converted: one at a time, so that together they do not hold the loop."""
        self.draining = False
        self.admission = Admission(settings.max_lateness_ms, lambda: len(self.live), self._wake)
        self.held = Held(settings.max_held_bytes, self.signals.shed.labels("refused", "memory").inc)
        self.accounts = Accounts(self.held, settings.max_share_per_key, keys)
        self.bodies: TimeoutQueue[Any] = TimeoutQueue(settings.body_timeout_s, lambda exchange: exchange.overdue())
        self._reloading = asyncio.Lock()
        self._pulse = LoopMonitor(self.admission.lapped)
        self._shed = {how: self.signals.shed.labels(how, "lateness") for how in get_args(How)}
        self._context = Context(self.live, self.signals, tracing, self.solver, self.admission, settings.max_deadline_ms)
        self.signals.open.set_function(lambda: len(self.live))
        self.signals.held_bytes.set_function(lambda: self.held.bytes)
        self.signals.predicted_lateness.set_function(lambda: self.admission.predicted_ms(now_ms()) / 1000.0)

    def open(
        self,
        ask: Ask,
        begun_ms: float,
        tell: AnswerCallback,
        fail: Callable[[Exception], None],
        *,
        update: AnswerCallback | None = None,
        shared: Prediction | None = None,
        admitted: bool | None = None,
        account: Account | None = None,
    ) -> ActivePrediction:
        """Open a prediction; `tell` may be called at once.

        Parameters
        ----------
        begun_ms : when it was asked for, from which its deadline counts.
        tell : called once with the answer.
        fail : called instead if there is none by a fault of ours, met when nobody is there to catch it.
        update : called with better answers before, where they are wanted.
        shared : the groups of a session.
        admitted : whether it may be begun, where that has been decided already; None decides it here.
        account : of the key that asks for it; None without a key.

        Raises
        ------
        UnknownModelError
            There is no such model.
        FieldError
            Something was asked for that cannot be.
        OverloadedError
            More is asked for than can be answered in time, too many predictions are open, or the service is stopping.
        """
        account = account or self.accounts.nobody
        self.check_room(account)
        if admitted is None:
            admitted = self.admission.admits(begun_ms)
        if not admitted:
            self.shed("prior" if ask.overload == "prior" else "refused")
            if ask.overload != "prior":
                raise self.overloaded()
        model = shared.model if shared is not None else self.registry.get(ask.model)
        if shared is not None and not admitted:
            shared = Prediction(model, shared.rows)  # of as many rows, without what has come
        most = self.settings.max_rows
        if ask.rows is not None and not 1 <= ask.rows <= most:
            raise FieldError("rows", f"rows is {ask.rows}; expected 1 to {most}, in several predictions if more")
        live = ActivePrediction(self._context, OpenPrediction(model, shared), tell, fail, update, account)
        live.begin(ask, begun_ms, overloaded=not admitted)
        return live

    def check_room(self, account: Account) -> None:
        """Raise OverloadedError where nothing more may be opened, by anybody or by the key of an account."""
        if account.has_share(len(account.live), self.settings.max_open):
            self.signals.shed.labels("refused", "open").inc()
            raise account.over_share(len(account.live), self.settings.max_open, "open predictions")
        if self.draining or len(self.live) >= self.settings.max_open:
            self.signals.shed.labels("refused", "stopping" if self.draining else "open").inc()
            why = "the service is stopping" if self.draining else f"{len(self.live)} predictions are open already"
            raise OverloadedError(f"{why}; ask again in a second, or another replica")

    def shed(self, how: How) -> None:
        """Count a prediction that is not begun for want of time."""
        self._shed[how].inc()

    def overloaded(self, retry_after_s: int | None = None) -> OverloadedError:
        """Why a prediction is not begun for want of time."""
        seconds = retry_after_s or self.admission.retry_after_s(now_ms())
        after = "a second" if seconds == 1 else f"{seconds} seconds"
        return OverloadedError(
            f"more is asked for than can be answered in time; ask again in {after}, ask another replica, or with"
            " overload=prior for the base rate",
            retry_after_s=seconds,
        )

    async def reload(self, name: str | None = None) -> None:
        """Load models again beside the event loop; what is open keeps the models it began with.

        Raises
        ------
        RegistryError, ArtifactError, UnknownModelError
            A model cannot be loaded; everything stays as it was. See `registry.reloaded`.
        """
        async with self._reloading:
            with self.signals.reloading():
                self.registry = await asyncio.to_thread(reloaded, self.registry, name)
            self.signals.serves(self.registry.every())

    def drain(self) -> None:
        """Answer everything that is open, and open nothing more."""
        self.draining = True
        for live in tuple(self.live):
            live.drain()

    def close(self) -> None:
        """End what runs beside the event loop."""
        self.solver.close()

    def _wake(self) -> None:
        self._pulse.start()
