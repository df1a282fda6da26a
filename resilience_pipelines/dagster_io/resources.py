"""Resources: where the platform's data lies.

What belongs here: resources that an operator sets in Dagster. What does not: starting jobs
(`launcher`).
"""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from resilience_pipelines.home import Home, open_home


class HomeResource(dg.ConfigurableResource[Home]):
    """The data home, opened when a step needs it."""

    path: str | None = Field(
        default=None,
        description="Folder of the data home. RESILIENCE_HOME, else `.resilience`, when not set.",
    )

    def open(self) -> Home:
        """The data home, its folders made.

        Raises:
            InputError: it can't be written.
        """
        return open_home(self.path)
