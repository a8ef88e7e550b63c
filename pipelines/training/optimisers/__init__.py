"""How a minimum is found: plain sequential code against an `Oracle`, which hides where the rows are."""

from pipelines.training.optimisers.oracle import BatchOracle, Oracle, Outcome, Step, Watch

__all__ = ["BatchOracle", "Oracle", "Outcome", "Step", "Watch"]
