"""A sensor for verdicts on upgrades.

What belongs here: waiting for a verdict. What does not: drawing one, which is the platform's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import BaseHook, BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException

from resilience_pipelines.airflow.client import Dagster, endpoint_of
from resilience_pipelines.airflow.triggers import UpgradeVerdictTrigger, newest_verdict


class UpgradeVerdictSensor(BaseSensorOperator):
    """Waits for a new verdict on an upgrade to a stack, and returns it as XCom.

    The XCom has `verdict` (`safe`, `safe_with_notes`, `not_safe`, `not_enough_data`), `upgrade`,
    `reasons`, `from`, `to`, `at` and the Dagster `run_id`.

    Args:
        stack: the key of the stack after the upgrade, or the beginning of one; any when None.
        since: older verdicts don't count; the DAG run's start when None. May be a template.
        dagster_conn_id: an HTTP connection to Dagster's webserver.
        deferrable: whether to wait in the triggerer, without a worker slot.
    """

    template_fields: Sequence[str] = ("stack", "since", "dagster_conn_id")

    def __init__(
        self,
        *,
        stack: str | None = None,
        since: str | datetime | None = None,
        dagster_conn_id: str = "dagster_default",
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stack = stack
        self.since = since
        self.dagster_conn_id = dagster_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait, in the triggerer where that is wanted."""
        if not self.deferrable:
            return super().execute(context)
        found = self._look(context)
        if found is None:
            self._defer(context)
        return found

    def _defer(self, context: Context) -> None:
        self.defer(
            trigger=UpgradeVerdictTrigger(
                self.stack, self._since(context), self.dagster_conn_id, self.poke_interval
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        found = self._look(context)
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return the verdict that the trigger saw."""
        if error := event.get("error"):
            raise AirflowException(error)
        return dict(event["verdict"])

    def _look(self, context: Context) -> dict[str, Any] | None:
        dagster = Dagster(endpoint_of(BaseHook.get_connection(self.dagster_conn_id)))
        return newest_verdict(dagster, self.stack, self._since(context))

    def _since(self, context: Context) -> float:
        since = self.since or context["dag_run"].start_date
        moment = datetime.fromisoformat(since) if isinstance(since, str) else since
        return float(moment.timestamp())
