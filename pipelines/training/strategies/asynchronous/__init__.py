"""Gradient descent in which nobody waits for a slow rank: work is dealt on demand, updates are made as they come."""

from pipelines.training.strategies.asynchronous.course import Course, Unit
from pipelines.training.strategies.asynchronous.hub import Door, Hub
from pipelines.training.strategies.asynchronous.worker import FarPort, HerePort, Port, Worker

__all__ = ["Course", "Door", "FarPort", "HerePort", "Hub", "Port", "Unit", "Worker"]
