"""How is a fitted foreign estimator stored? With skops and a recorded list of the types that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.codec import canonical
from pipelines.errors import UserCodeError


def store_estimator(estimator: Any, name: str, X: Any) -> dict[str, bytes]:
    """Store an estimator, and make sure that it comes back predicting the same.

    Parameters
    ----------
    estimator : fitted estimator
    name : str
        Import path that the user asked for.
    X : ndarray or csr_matrix, shape (rows, features)
        A few rows to predict.

    Returns
    -------
    dict of str to bytes
        ``estimator.skops`` and ``foreign.json`` (the class, the trusted types).

    Raises
    ------
    UserCodeError
        skops can't store it, or it comes back as something else.
    """
    from skops import io as skops_io

    try:
        stored = bytes(skops_io.dumps(estimator))
        trusted = sorted(skops_io.get_untrusted_types(data=stored))
        again = skops_io.loads(stored, trusted=trusted)
        same = len(X) == 0 if isinstance(X, np.ndarray) else X.shape[0] == 0
        same = same or bool(np.array_equal(again.predict(X), estimator.predict(X), equal_nan=True))
    except Exception as error:  # skops raises whatever the parts of a foreign object raise
        raise cannot_store(name, f"{type(error).__name__}: {error}") from error
    if not same:
        raise cannot_store(name, "what is read back predicts something else")
    facts = {"schema": 1, "class": name, "trusted": trusted}
    return {"estimator.skops": stored, "foreign.json": canonical(facts)}


def check_storable(estimator: Any, name: str) -> None:
    """Find out before training whether an estimator with these params can be stored at all.

    Raises
    ------
    UserCodeError
        skops can't store it.
    """
    from skops import io as skops_io

    try:
        stored = skops_io.dumps(estimator)
        skops_io.loads(stored, trusted=skops_io.get_untrusted_types(data=stored))
    except Exception as error:  # as above
        raise cannot_store(name, f"{type(error).__name__}: {error}") from error


def cannot_store(name: str, why: str) -> UserCodeError:
    """Say that skops can't store an estimator."""
    return UserCodeError(
        "the estimator can't be stored: skops keeps scikit-learn estimators, and pickles are not used",
        on=name,
        found=why,
        remedy="Give it params without functions or open files, or use another class",
    )
