"""A spec compiled into a frozen plan that explains itself before anything runs."""

from pipelines.plan.compile import Compiled, compile_plan
from pipelines.plan.value import Plan

__all__ = ["Compiled", "Plan", "compile_plan"]
