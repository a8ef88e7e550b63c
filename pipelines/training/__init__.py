"""Gangs of ranks, the collective, training strategies, estimators and checkpoints."""
