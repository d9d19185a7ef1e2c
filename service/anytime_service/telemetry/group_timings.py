"""Times between what comes of one prediction, from which the costs of its groups are learned.

What computing a group took is what the client tells of it. Where nothing is told it is the time since what came before:
the beginning, or the last group. Groups that come too late count too, or the costs would be those of the quick ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from anytime_service.telemetry.metrics import ModelMetrics

__all__ = [
    "LONGEST_MS",
    "GroupTimings",
    "SessionTimings",
]

LONGEST_MS = 3_600_000.0
"""More than this is not believed of a group: one absurd number would drown the sum of all others."""


class GroupTimings:
    """When what came last of one prediction came; it outlives its answer, as groups may come after that.

    Parameters
    ----------
    signals : the measures of its model.
    begun_ms : when the prediction was begun.
    """

    __slots__ = ("_last_ms", "signals")

    def __init__(self, signals: ModelMetrics, begun_ms: float) -> None:
        self.signals = signals
        self._last_ms = begun_ms

    def came(self, group: str, now_ms: float, took_ms: float | None = None, again: bool = False) -> None:
        """Note a group that came by itself.

        Parameters
        ----------
        took_ms : what computing it took, where the client tells.
        again : it had come before, and nothing is told: sent once more it may not have been computed once more.
        """
        if took_ms is None:
            took_ms = now_ms - self._last_ms
        self._last_ms = now_ms
        if not again:
            tally = self.signals.groups.get(group) or self.signals.group(group)
            if tally is not None:
                tally.observe(took_ms / 1000.0 if took_ms < LONGEST_MS else LONGEST_MS / 1000.0)

    def together(self, now_ms: float) -> None:
        """Note groups that came together: no time can be told for each."""
        self._last_ms = now_ms

    def missed(self, group: str, now_ms: float, took_ms: float | None = None) -> None:
        """Note a group that came when the answer had left."""
        self.signals.dropped(1)
        self.came(group, now_ms, took_ms)


class SessionTimings:
    """The same of sessions by their ids, wherever the sessions themselves are kept.

    Parameters
    ----------
    most : sessions to remember; the one that was heard of longest ago is forgotten first, which costs a measurement.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._laps: OrderedDict[str, GroupTimings] = OrderedDict()

    def begin(self, name: str, signals: ModelMetrics, now_ms: float) -> None:
        """Note that a session was begun, or is heard of for the first time in this process."""
        self._laps[name] = GroupTimings(signals, now_ms)
        if len(self._laps) > self._most:
            self._laps.popitem(last=False)

    def came(self, name: str, signals: ModelMetrics, groups: Sequence[str], now_ms: float, *, again: bool) -> None:
        """Note groups that a session has taken; `again`: they had come before."""
        laps = self._laps.get(name)
        if laps is None:
            self.begin(name, signals, now_ms)
            return
        self._laps.move_to_end(name)
        if len(groups) == 1:
            laps.came(groups[0], now_ms, again=again)
        else:
            laps.together(now_ms)

    def end(self, name: str) -> None:
        """Forget a session."""
        self._laps.pop(name, None)
