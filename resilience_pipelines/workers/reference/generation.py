"""What goes into and comes out of a generation: plain data.

What belongs here: what both the model and its callers name. What does not: anything that needs the
kernels, whose import compiles them.
"""

from __future__ import annotations

from dataclasses import dataclass


class AsleepError(Exception):
    """A sleeping model was asked to compute."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the most probable token.
        seed: of the draws at a temperature above 0; None draws otherwise each time.
        top: how many of the most probable tokens are told with each token.
        ignore_end: go on after the end token.
    """

    temperature: float = 0.0
    seed: int | None = None
    top: int = 0
    ignore_end: bool = False


GREEDY = Sampling()


@dataclass(frozen=True)
class Token:
    """A generated token with its natural log-probability, whatever the temperature.

    Attributes:
        top: the most probable tokens with theirs, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
