"""Vectors in parts are worked with as whole ones are, and scores are added to the same bits on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.training.objectives import Logistic, Multinomial
from pipelines.training.optimisers.space import WHOLE
from pipelines.training.strategies.model_parallel import ScoreExchange
from pipelines.training.strategies.model_parallel_space import BlockSpace
from pipelines.training.value_losses import Squared

WIDTHS = (40_000, 3, 17, 900)
DEALS = [((0, 1, 2, 3),), ((0, 3), (1, 2)), ((1,), (0, 2), (3,))]
ENDS = np.cumsum((0, *WIDTHS))


def part_of(vector: np.ndarray, blocks: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([vector[ENDS[number] : ENDS[number + 1]] for number in blocks])


def in_parts(mesh: Any, deal: tuple[tuple[int, ...], ...], ask: Any) -> list[Any]:
    """Ask every rank's space, with a function that cuts vectors to the rank's part."""

    def program(collective: Any) -> Any:
        own = deal[collective.rank]
        ends = np.cumsum([0, *(WIDTHS[number] for number in own)])
        segments = {number: slice(int(a), int(b)) for number, a, b in zip(own, ends, ends[1:], strict=False)}
        return ask(BlockSpace(collective, deal, segments), lambda vector: part_of(vector, own))

    outcomes = mesh.run([program] * len(deal))
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def test_products_and_norms_are_those_of_whole_vectors(mesh: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, ENDS[-1]))
    penalised = rng.random(ENDS[-1]) < 0.7
    expected = [*WHOLE.dots([(a, b), (a, a)]), WHOLE.largest(a), WHOLE.one_norm(b, penalised)]
    seen = set()
    for deal in DEALS:
        found = in_parts(
            mesh,
            deal,
            lambda space, cut: (
                *space.dots([(cut(a), cut(b)), (cut(a), cut(a))]),
                space.largest(cut(a)),
                space.one_norm(cut(b), cut(penalised)),
            ),
        )
        np.testing.assert_allclose(found[0], expected, rtol=1e-12)
        seen |= set(found)
    assert len(seen) == 1, "all ranks, of any deal, have the same bits"


@pytest.mark.parametrize("pairs", [0, 1, 4, 10])
def test_the_direction_is_that_of_the_two_loop_recursion(mesh: Any, pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    n = int(ENDS[-1])
    curvature = np.exp(rng.uniform(-2, 2, n))
    steps = rng.normal(size=(pairs, n))
    history = [(s, curvature * s + 0.01 * rng.normal(size=n)) for s in steps]
    descent, diagonal = rng.normal(size=n), curvature * np.exp(rng.uniform(-0.5, 0.5, n))
    expected = WHOLE.direction(descent, history, diagonal)
    bits = set()
    for deal in DEALS:
        found = in_parts(
            mesh,
            deal,
            lambda space, cut: space.direction(cut(descent), [(cut(s), cut(y)) for s, y in history], cut(diagonal)),
        )
        whole = np.empty(n)
        for own, part in zip(deal, found, strict=True):
            ends = np.cumsum([0, *(WIDTHS[number] for number in own)])
            for number, start, stop in zip(own, ends, ends[1:], strict=False):
                whole[ENDS[number] : ENDS[number + 1]] = part[start:stop]
        # Inner products of 40,920 terms round differently when they are combined from others.
        np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-11 * np.abs(expected).max())
        bits.add(whole.tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize(
    "loss", [Logistic(), Squared(1.0, 2.0), Multinomial(3)], ids=["logistic", "squared", "softmax"]
)
@pytest.mark.parametrize("rows", [1, 64, 9000])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("deals", [DEALS, [((0, 1),), ((0,), (1,)), ((1,), (0,))]], ids=["four blocks", "two blocks"])
def test_losses_and_residuals_are_those_of_the_added_scores(
    mesh: Any, loss: Any, rows: int, weighted: bool, kind: Any, deals: Any
) -> None:
    rng = np.random.default_rng(rows)
    blocks = sum(map(len, deals[0]))
    partials = rng.normal(size=(blocks, loss.outputs, rows)).astype(kind)
    y = rng.integers(0, max(loss.outputs, 2), rows).astype(np.float32)
    weight = rng.random(rows) if weighted else None
    value, residuals = loss.evaluate(partials.sum(axis=0, dtype=np.float64), y, weight)
    bits = set()
    for deal in deals:

        def program(collective: Any, deal: Any = deal) -> Any:
            own = partials[list(deal[collective.rank])]
            return ScoreExchange(collective, deal, loss).take(own, y, weight)

        for taken in mesh.run([program] * len(deal)):
            assert taken.residuals.dtype == kind
            np.testing.assert_allclose(taken.sums.sum(axis=0), [value, rows if weight is None else weight.sum()])
            np.testing.assert_allclose(taken.residuals, residuals, rtol=0, atol=1e-6 if kind is np.float32 else 1e-12)
            bits.add(taken.sums.tobytes() + taken.residuals.tobytes())
    assert len(bits) == 1
