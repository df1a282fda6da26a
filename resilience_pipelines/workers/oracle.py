"""The oracle: greedy tokens and log-probabilities recorded before, compared with the answer after.

What belongs here: recording and comparing. What does not: when to ask (`startup`, `faults`,
`snapshots`). A start that answers differently has failed, however fast it was.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from resilience_pipelines.records import Count, Oracle, OracleVerdict, Record
from resilience_pipelines.workers.client import Completion, WorkerAnswerError, WorkerClient

PROMPT = "The worker came back and said:"
TOKENS = 24


class RecordedAnswer(Record):
    """What a worker answered to a prompt, greedily."""

    prompt: Annotated[str, Field(min_length=1, max_length=4000)]
    token_ids: tuple[Count, ...]
    logprobs: tuple[float, ...]


def record_answer(client: WorkerClient, *, timeout_s: float) -> RecordedAnswer:
    """Ask the oracle's question.

    Raises:
        WorkerRequestError: no answer, or one that no later answer could be equal to.
    """
    completion = client.complete(PROMPT, TOKENS, timeout_s=timeout_s)
    if not completion.token_ids or not all(map(math.isfinite, completion.logprobs)):
        raise WorkerAnswerError("The answer has no tokens, or log-probabilities that are none.")
    return RecordedAnswer(
        prompt=PROMPT, token_ids=completion.token_ids, logprobs=completion.logprobs
    )


def first_token_is_right(client: WorkerClient, expected: RecordedAnswer, timeout_s: float) -> bool:
    """Ask for one token and compare it: the end of a start."""
    got = client.complete(expected.prompt, 1, timeout_s=timeout_s)
    return got.token_ids[:1] == expected.token_ids[:1]


def check_answer(
    client: WorkerClient, expected: RecordedAnswer, *, tolerance: float, timeout_s: float
) -> Oracle:
    """Ask the whole question again and compare every token and log-probability."""
    got = client.complete(expected.prompt, len(expected.token_ids), timeout_s=timeout_s)
    return compare(expected, got, tolerance)


def compare(expected: RecordedAnswer, got: Completion, tolerance: float) -> Oracle:
    """Equal when all tokens are and no log-probability differs by more than `tolerance`."""
    wanted = expected.token_ids
    first = next(
        (
            index
            for index in range(max(len(wanted), len(got.token_ids)))
            if wanted[index : index + 1] != got.token_ids[index : index + 1]
        ),
        None,
    )
    differences = [
        abs(before - after) for before, after in zip(expected.logprobs, got.logprobs, strict=False)
    ]
    # A NaN compares false with everything: it must not pass for a small difference.
    worst = math.inf if any(math.isnan(d) for d in differences) else max(differences, default=0.0)
    complete = len(expected.logprobs) == len(got.logprobs)
    equal = first is None and bool(wanted) and complete and worst <= tolerance
    if equal:
        detail = ""
    elif first is not None:
        detail = f"token {first} differs"
    elif not complete:
        detail = f"{len(got.logprobs)} log-probabilities instead of {len(expected.logprobs)}"
    else:
        detail = f"a log-probability differs by {worst:g}, more than {tolerance:g}"
    return Oracle(
        verdict=OracleVerdict.EQUAL if equal else OracleVerdict.DIFFERENT,
        tokens=len(wanted),
        first_difference=first,
        max_logprob_difference=worst if math.isfinite(worst) else None,
        detail=detail,
    )


NOT_CHECKED = Oracle(verdict=OracleVerdict.NOT_CHECKED)
