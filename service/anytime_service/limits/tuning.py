"""Numbers of the service that tests vary and that are no settings: one frozen object, which `create_app` passes on.

Every other constant stands in the module that uses it, next to its reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Numbers that suit every deployment.

    Attributes
    ----------
    linger_s : float
        Time to read a body after its response: some clients read nothing until they have sent it all.
    key_check_s : float
        Interval between two checks of the key file.
    max_contributions : int
        Contributions of columns in one answer: to encode them takes as long as the server may be late.
    max_solving : int
        Sets that wait for the thread that solves; further ones are answered from the prefix.
    store_check_s : float
        Interval between two checks of the session store.
    min_read_ms : float
        Least time to read a session, even if its deadline is sooner: a late answer beats none.
    max_known : int
        Sessions whose models a replica caches, so that posting groups takes one round trip.
    """

    linger_s: float = 2.0
    key_check_s: float = 1.0
    max_contributions: int = 100_000
    max_solving: int = 64
    store_check_s: float = 1.0
    min_read_ms: float = 20.0
    max_known: int = 10_000


TUNING = Tuning()
