"""TTL cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anytime_service.limits.queues import TTLCache


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 500)), max_size=60), st.integers(1, 10))
def test_the_cache_contains_the_newest_items_that_have_not_expired(came: list[tuple[int, float]], most: int) -> None:
    kept, now, reported = TTLCache[int](most, 1000.0), 0.0, dict[int, tuple[float, int]]()
    for number, (name, gap_ms) in enumerate(came):
        now += gap_ms
        if name in kept and number % 2:
            kept.forget(name)
            assert kept.get(name) is None
        reported.pop(name, None)  # a name that is added again is the newest
        kept.add(name, number, now)
        reported[name] = now, number
        due = [each for each, (at, _) in reported.items() if at >= now - 1000.0][-most:]
        assert [each for each in range(21) if each in kept] == sorted(due)
        assert len(kept._items) == len(due)
        assert all(kept.get(each) == reported[each][1] for each in due)
        reported = {each: reported[each] for each in due}
