"""What each row adds to the metrics: the numbers that are summed, before any of them is put together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipelines.evaluation.catalogue import Kind
from pipelines.evaluation.deviance import term_names, unit_deviance
from pipelines.evaluation.sums import Codes, Floats, grouped_counts, grouped_sums, two_product

BINS = 10
"""Bins of the calibration curve and of the expected calibration error, of equal width."""

FULL_CONFUSION = 20
"""Up to so many classes the whole confusion matrix is kept."""

MARK = "@"
"""Stands between a term and the number of its label, where there are several."""

_EPSILON = float(np.finfo(np.float64).eps)  # where scikit-learn clips float64 probabilities for the log loss


@dataclass(frozen=True)
class Rows:
    """Some scored rows.

    y : ndarray, shape (rows,): class codes (intp), or values (float64) for regression; (rows, labels) for several
    scores : ndarray of float64, shape (rows,) or (rows, classes): what `Model.scores` gave
    weight : ndarray of float64, shape (rows,), or None
    """

    y: Floats | Codes
    scores: Floats
    weight: Floats | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Question:
    """What is asked of the rows: the label's kind, its number of classes, the threshold, a constant to compare with.

    `constant` is the prediction that a regression's baseline makes (the mean label of the training rows); `deviances`
    are the powers of the deviances that are summed; `further` are the constants of further labels, where there are any;
    `segment_terms` are the names of the terms that are summed for segments.
    """

    kind: Kind
    classes: int = 0
    threshold: float = 0.5
    constant: float = 0.0
    segment_terms: frozenset[str] = frozenset({"weight"})
    deviances: tuple[float, ...] = ()
    further: tuple[float, ...] = ()


@dataclass(frozen=True)
class Term:
    """One thing to be summed: values (None counts the rows), and the cell that each row's value belongs to."""

    name: str
    values: Floats | None
    cells: Codes | None = None
    n_cells: int = 1

    def sums(self, groups: Codes | None, count: int) -> list[list[int]]:
        """Sum exactly by group and cell: a list of `n_cells` sums for each of `count` groups."""
        flat = _flat(self.cells, groups, self.n_cells)
        if self.values is None:
            flat = np.zeros(0, np.intp) if flat is None else flat
            sums = grouped_counts(flat, count * self.n_cells)
        else:
            sums = grouped_sums(self.values, flat, count * self.n_cells)
        return [sums[i : i + self.n_cells] for i in range(0, len(sums), self.n_cells)]


def terms_of(question: Question, rows: Rows) -> list[Term]:
    """Work out the terms of some rows: all finite, weights positive."""
    if question.further:
        found = [_weights(rows)]
        for k, constant in enumerate((question.constant, *question.further)):
            y, scores = (np.ascontiguousarray(each[:, k], np.float64) for each in (rows.y, rows.scores))
            one = Rows(y, scores, rows.weight)
            terms = terms_of(replace(question, constant=constant, further=()), one)
            found += [replace(term, name=f"{term.name}{MARK}{k}") for term in terms]
        return found
    if question.kind == "regression":
        losses, terms = _regression(question, rows)
    elif question.kind == "binary":
        losses, terms = _binary(question, rows)
    else:
        losses, terms = _multiclass(question, rows)
    weighted = [Term(name, _times(rows.weight, loss)) for name, loss in losses.items()]
    return [*terms, *weighted, *_spread(losses, rows)]


def predicted_classes(question: Question, scores: Floats) -> Codes:
    """Decide the class of each row as the model does: at the threshold, or the most probable class."""
    if question.kind == "binary":
        return (scores >= question.threshold).astype(np.intp)
    return np.argmax(scores, axis=1)


def bin_of(scores: Floats) -> Codes:
    """Find the calibration bin of each probability, as `sklearn.calibration.calibration_curve` does."""
    edges = np.linspace(0.0, 1.0, BINS + 1)
    return np.searchsorted(edges[1:-1], scores)


def _regression(question: Question, rows: Rows) -> tuple[dict[str, Floats], list[Term]]:
    y, difference = rows.y.astype(np.float64, copy=False), rows.y - rows.scores
    from_constant = y - question.constant
    losses = {"absolute": np.abs(difference), "squared": difference * difference}
    terms = [
        _weights(rows),
        Term("difference", _times(rows.weight, difference)),
        Term("constant_difference", _times(rows.weight, from_constant)),
        Term("constant_absolute", _times(rows.weight, np.abs(from_constant))),
        *_moments(y, rows.weight),
    ]
    for power in question.deviances:
        deviance, of_constant, outside = term_names(power)
        losses[deviance], beyond = unit_deviance(y, rows.scores, power)
        constant, _ = unit_deviance(y, np.full_like(y, question.constant), power)
        terms += [
            Term(of_constant, _times(rows.weight, constant)),
            Term(outside, None, beyond.astype(np.intp), 2),
        ]
    return losses, terms


def _moments(y: Floats, weight: Floats | None) -> list[Term]:
    # Σwy and Σwy² without any rounding, so that the variance of labels far from zero loses nothing.
    square, square_error = two_product(y, y)
    if weight is None:
        return [Term("y", y), Term("yy", square), Term("yy_error", square_error)]
    first, first_error = two_product(weight, y)
    second, second_error = two_product(weight, square)
    return [
        Term("y", first),
        Term("y_error", first_error),
        Term("yy", second),
        Term("yy_error", second_error),
        Term("yy_error2", weight * square_error),
    ]


def _binary(question: Question, rows: Rows) -> tuple[dict[str, Floats], list[Term]]:
    positive = rows.y == 1
    own = np.clip(np.where(positive, rows.scores, 1.0 - rows.scores), _EPSILON, 1 - _EPSILON)
    off = rows.scores - rows.y
    decided = predicted_classes(question, rows.scores)
    losses = {"log_loss": -np.log(own), "brier": off * off, "hit": (decided == rows.y).astype(np.float64)}
    bins = bin_of(rows.scores)
    in_bins = [
        Term("bin_rows", None, bins, BINS),
        Term("bin_weight", rows.weight, bins * 2 + positive, 2 * BINS),
        Term("bin_score", _times(rows.weight, rows.scores), bins, BINS),
    ]
    return losses, [_weights(rows), *_classes(rows, decided, 2), *in_bins]


def _multiclass(question: Question, rows: Rows) -> tuple[dict[str, Floats], list[Term]]:
    own = rows.scores[np.arange(len(rows)), rows.y]
    decided = predicted_classes(question, rows.scores)
    brier = (1.0 - own) ** 2
    for k in range(question.classes):  # column by column: the order in which a row's squares are added must not vary
        brier += np.where(rows.y == k, 0.0, rows.scores[:, k] ** 2)
    losses = {
        "log_loss": -np.log(np.clip(own, _EPSILON, 1 - _EPSILON)),
        "brier": brier,
        "hit": (decided == rows.y).astype(np.float64),
    }
    return losses, [_weights(rows), *_classes(rows, decided, question.classes)]


def _weights(rows: Rows) -> Term:
    return Term("weight", rows.weight, np.zeros(len(rows), np.intp))


def _classes(rows: Rows, decided: Codes, classes: int) -> list[Term]:
    # The confusion matrix where it is small; else only its margins and diagonal, of which all metrics here are made.
    truth = rows.y.astype(np.intp, copy=False)
    if classes <= FULL_CONFUSION:
        return [Term("confusion", rows.weight, truth * classes + decided, classes * classes)]
    right = np.where(truth == decided, truth, classes)
    return [
        Term("truth", rows.weight, truth, classes),
        Term("decided", rows.weight, decided, classes),
        Term("right", rows.weight, right, classes + 1),
    ]


def _spread(losses: dict[str, Floats], rows: Rows) -> list[Term]:
    # For the standard error of a weighted mean: Σw², Σw²l, Σw²l²; without weights the first two are there already.
    if rows.weight is None:
        return [Term(f"{name}2_w2", loss * loss) for name, loss in losses.items()]
    squared = rows.weight * rows.weight
    terms = [Term("weight2", squared)]
    for name, loss in losses.items():
        terms += [Term(f"{name}_w2", squared * loss), Term(f"{name}2_w2", squared * loss * loss)]
    return terms


def _times(weight: Floats | None, values: Floats) -> Floats:
    return values if weight is None else weight * values


def _flat(cells: Codes | None, groups: Codes | None, n_cells: int) -> Codes | None:
    if cells is None:
        return groups
    if groups is None:
        return cells
    return groups * n_cells + cells
