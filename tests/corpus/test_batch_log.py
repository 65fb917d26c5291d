from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentspec.corpus.batch_log import SeenNumbers

ADDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=30)


def flat(ranges: list[range]) -> list[int]:
    return [number for one in ranges for number in one]


@given(ADDS)
def test_each_number_is_new_once_in_whatever_order(adds):
    seen, known = SeenNumbers(), set()
    for first, count in adds:
        numbers = range(first, first + count)
        assert flat(seen.add(first, count)) == [number for number in numbers if number not in known]
        known.update(numbers)
        base = next((first for first, count in adds if count), 0)
        above = [number for number in known if number >= base]
        assert (
            seen.num_missing == len(range(base, max(known))) - len(set(above) - {max(known)}) if known else 1
        )


def test_a_gap_is_counted_until_it_is_filled():
    seen = SeenNumbers()
    seen.add(100, 2)
    assert seen.num_missing == 0  # what was before is not missed
    assert flat(seen.add(110, 1)) == [110]
    assert seen.num_missing == 8
    assert flat(seen.add(100, 12)) == [*range(102, 110), 111]
    assert seen.num_missing == 0


def test_the_lowest_gaps_are_closed_and_stay_missing():
    seen = SeenNumbers(most_ranges=4)
    for number in range(0, 20, 2):
        seen.add(number, 1)
    assert seen.num_ranges == 4
    assert seen.num_missing == 9
    assert flat(seen.add(1, 1)) == []
    assert flat(seen.add(17, 1)) == [17]
    assert seen.num_missing == 8
