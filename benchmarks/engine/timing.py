"""Alternating measurements: the ways of doing something take turns, and medians over the rounds are compared."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def synchronise(device: str) -> None:
    """Wait for what runs on the device; nothing on a CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], device: str) -> float:
    """On a GPU the time until it is done; on a CPU with one thread the CPU time, which other processes disturb less."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    synchronise(device)
    started = clock()
    work()
    synchronise(device)
    return clock() - started


def alternate(
    ways: Mapping[str, Callable[[], T]], rounds: int, limit_seconds: float, warm_up: bool = True
) -> dict[str, list[T]]:
    """What each way returned, round by round, after one call of each that is not counted.

    Every second round goes backwards. After `limit_seconds`, warm-up included, no further round begins; one is
    always made.
    """
    started = time.perf_counter()
    for work in ways.values() if warm_up else ():
        work()
    results: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds):
        if number and time.perf_counter() - started > limit_seconds:
            break
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            results[name].append(ways[name]())
    return results


def timed(
    ways: Mapping[str, Callable[[], object]], rounds: int, limit_seconds: float, device: str
) -> dict[str, list[float]]:
    """`alternate` for work that is to be timed: seconds."""

    def timer(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: seconds_of(work, device)

    return alternate({name: timer(work) for name, work in ways.items()}, rounds, limit_seconds)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def significant(value: float, digits: int = 4) -> float:
    """Rounded to so many significant digits."""
    return float(f"{value:.{digits}g}")
