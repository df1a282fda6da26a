"""Failures: this platform's errors as a Dagster run shows them.

What belongs here: the translation. What does not: any error of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from resilience_pipelines.errors import BusyError, ResilienceError


@contextmanager
def failures() -> Iterator[None]:
    """Turn the library's errors into a failure that names reason and mend.

    Only something that is busy may be tried again: nothing else mends itself.

    Raises:
        dagster.Failure: in place of a `ResilienceError`.
    """
    try:
        yield
    except ResilienceError as error:
        raise dg.Failure(
            description=str(error),
            metadata={
                "error": type(error).__name__,
                "reason": error.reason,
                "mend": error.mend or "none known",
                "exit_code": error.exit_code,
            },
            allow_retries=isinstance(error, BusyError),
        ) from error
