"""What a training that survives tells: losses, replacements, growth, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.training.gang import GangResult, Loss
from pipelines.training.gang.book import Holder
from pipelines.training.gang.events import Introduce
from pipelines.training.gang.queue import Place
from pipelines.training.happenings import Happening
from pipelines.training.story import Story, history


class Listener:
    """A story, its clock, and what it told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard: list[Happening] = []
        self.story = Story(self.heard.append, lambda: self.now)

    def form(self, formation: int, ranks: int) -> None:
        members = tuple(range(ranks))
        self.story.formed(Introduce(formation, members, (("", 0),) * ranks, ((),) * ranks))

    def begin(self, formation: int, step: int, *, lost: int = 0, stored: bool = False) -> str:
        word = {"unit": "began", "formation": formation, "step": step, "lost_steps": lost, "lost_s": 0.5 * lost}
        self.story.began({**word, "stored": stored, "saved_at": 0.0})
        return self.heard[-1].text

    def lose(self, text: str = "was killed by SIGKILL") -> None:
        self.story.lost(Loss(1, 1, "w at tcp://x", "killed", f"{text}\nlog", 12.5))


@pytest.fixture
def told() -> Listener:
    return Listener()


def test_a_quiet_training_says_only_that_it_begins(told: Listener) -> None:
    told.form(1, 2)
    assert told.begin(1, 0) == "the training begins with 2 ranks"
    assert [each.what for each in told.heard] == ["formation", "resumption"]
    assert told.story.resumptions == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (2, 1, "the training goes on with 1 rank from step 34; 2 steps are done again"),
        (2, 2, "the training goes on with a replacement (2 ranks) from step 34; 2 steps are done again"),
    ],
)
def test_a_loss_and_what_becomes_of_it_are_told(told: Listener, before: int, after: int, words: str) -> None:
    told.form(1, before)
    told.begin(1, 0)
    told.lose()
    assert told.heard[-1].text == "rank 1 on w at tcp://x was lost: it was killed by SIGKILL"
    assert told.heard[-1].data["at"] == 12.5
    told.now += 3.0
    told.form(2, after)
    assert told.heard[-1].what == "formation"
    assert told.heard[-1].data == {"formation": 2, "ranks": after, "waited_s": 3.0}
    assert told.begin(2, 34, lost=2) == words


def test_the_work_stands_still_from_the_last_word_on(told: Listener) -> None:
    told.form(1, 2)
    told.story.spoke()
    told.now += 6.0
    told.lose("its process has been stopped for 6.0 s")
    told.now += 1.0
    told.form(2, 2)
    assert told.heard[-1].data["waited_s"] == 7.0


def test_growth_and_a_restored_training_are_told_as_such(told: Listener) -> None:
    told.form(1, 1)
    assert told.begin(1, 50, stored=True) == "the training goes on with 1 rank from step 50 of its last checkpoint"
    told.form(2, 3)
    assert told.begin(2, 60) == "the training has grown from 1 to 3 ranks from step 60"


def test_a_loss_before_any_state_means_the_beginning(told: Listener) -> None:
    told.form(1, 2)
    told.lose("its worker was lost")
    told.form(2, 1)
    assert told.begin(2, 0, lost=1) == "the training goes on with 1 rank from the beginning; 1 step is done again"


def test_the_wait_in_line_is_told_with_those_who_hold_workers(told: Listener) -> None:
    holder = Holder("other", 2, 61.0)
    told.story.waits(Place(2, ("third",), (holder,), 2, 0, 2))
    assert told.heard[-1].what == "waits"
    assert "place 2 behind third" in told.heard[-1].text
    assert "other" in told.heard[-1].text
    assert told.heard[-1].data["holders"] == [{"name": "other", "workers": 2}]
    told.now += 7.0
    told.form(1, 2)
    assert told.heard[-1].data["waited_s"] == 7.0


def test_the_sum_counts_what_was_done_again_after_losses_only(told: Listener) -> None:
    told.form(1, 2)
    told.begin(1, 10, lost=9, stored=True)
    told.form(2, 1)
    told.begin(2, 20, lost=3)
    loss = Loss(1, 1, "w", "killed", "text", 1.0)
    found: dict[str, Any] = history(GangResult([b""], 2, (loss,), (0.25,)), told.story.resumptions, {2: 3.14159})
    assert (found["formations"], found["lost_steps"], found["lost_s"]) == (2, 3, 1.75)
    assert found["losses"][0]["at"] == 1.0
    assert len(found["resumptions"]) == 2
    assert found["stragglers"] == {"2": 3.14}
