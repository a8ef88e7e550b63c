"""Whoever runs a gang can speak to its rank 0: words come in their order, and a gang that formed again asks again."""

from __future__ import annotations

import json
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from pipelines.errors import InterruptedRunError
from pipelines.training.gang import GangResult, Sizes, run_gang

pytestmark = pytest.mark.usefixtures("programs_on_path")


class Owner:
    """Answers each question with the next piece of work that is not done, then with the end."""

    def __init__(self, pieces: int, *, die: int = 0) -> None:
        self.words: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._left, self._die = list(range(pieces)), die
        self.done: list[int] = []

    def __call__(self, rank: int, message: dict[str, Any]) -> None:
        assert rank == 0
        if "done" in message:
            self.done.append(message["done"])
            self._left.remove(message["done"])
            return
        self.words.put({"ticket": "an older one", "work": -1, "die": 0})
        answer = {"work": self._left[0], "die": self._die} if self._left else {"end": True}
        self.words.put({**answer, "ticket": message["ready"]})

    def run(self, **more: Any) -> GangResult:
        sizes = Sizes(2, 2, 2, survive=True)
        deal = [{}, {}]
        return run_gang(
            None, "gang_programs:converse", lambda _: deal, sizes=sizes, on_message=self, words=self.words, **more
        )


def test_words_are_heard_in_their_order() -> None:
    owner = Owner(5)
    gang = owner.run()
    assert owner.done == list(range(5))
    assert [json.loads(result) for result in gang.results] == [list(range(5))] * 2
    assert gang.formations == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_gang_that_forms_again_is_given_the_work_that_was_not_done(rank: int) -> None:
    owner = Owner(3, die=rank + 1)
    gang = owner.run()
    assert gang.formations == 2
    assert owner.done == [0, 1, 2]
    assert [loss.rank for loss in gang.losses] == [rank]


def test_a_rank_that_waits_for_a_word_leaves_when_it_is_asked_to() -> None:
    stop = threading.Event()
    with pytest.raises(InterruptedRunError):
        run_gang(
            None,
            "gang_programs:converse",
            [{}, {}],
            on_message=lambda rank, message: stop.set(),
            words=SimpleQueue(),
            stop=stop,
        )
