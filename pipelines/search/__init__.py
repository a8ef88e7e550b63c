"""Searching for parameters: Optuna's samplers and pruners over any estimator, trial by trial.

Only `space` and `study` import Optuna: whoever plans or shows a search need not.
"""
