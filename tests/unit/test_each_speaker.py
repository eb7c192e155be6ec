"""Items that another thread gets ahead, and items that threads work on side by side."""

from collections.abc import Iterator
from threading import Event, get_ident

import pytest

from services.registry_api.maintenance.each_speaker import in_parallel, one_ahead

LONG = 30.0


def test_the_next_item_is_got_while_the_caller_works_on_one() -> None:
    begun = [Event() for _ in range(4)]

    def numbers() -> Iterator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    found = list[int]()
    for number in one_ahead(numbers()):
        found.append(number)
        assert all(event.wait(LONG) for event in begun[: number + 2]), "nothing is got ahead"
        assert not any(event.is_set() for event in begun[number + 2 :]), "it runs too far ahead"
    assert found == [0, 1, 2, 3]


def test_an_error_ends_the_items_where_it_happened() -> None:
    def numbers() -> Iterator[int]:
        yield from range(2)
        raise OSError("the third item cannot be read")

    found = list[int]()
    with pytest.raises(OSError, match="the third item"):
        found.extend(number for number in one_ahead(numbers()))
    assert list(one_ahead(iter(()))) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_in_the_order_of_their_items(threads: int) -> None:
    assert list(in_parallel(str, range(20), threads)) == [str(number) for number in range(20)]
    workers = set(in_parallel(lambda _: get_ident(), range(20), threads))
    assert (workers == {get_ident()}) == (threads == 1)
