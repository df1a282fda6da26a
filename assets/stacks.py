"""The asset `stacks`: what this machine is.

What belongs here: reading this machine's stacks and registering their partitions. What does not:
the dimensions of a stack (`resilience_pipelines.stack`).
"""

import dagster as dg

from assets import groups
from resilience_pipelines.context import read_machines
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.metadata import stack_table, table
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dagster_io.stack_partitions import register

DESCRIPTION = """\
What this machine is: every dimension of hardware and software that can change a result, for each
worker that it can run. Materializing it registers the partition **hardware x software** that this
machine's measurements go to, and says whether snapshots can be taken here. A dimension that could
not be read is empty, never guessed.
"""


@dg.asset(
    group_name=groups.MACHINE,
    owners=[groups.OPERATORS],
    kinds={"python"},
    description=DESCRIPTION,
    tags={"cost": "seconds"},
)
def stacks(context: dg.AssetExecutionContext, home: HomeResource) -> dg.MaterializeResult[None]:
    """Read this machine and register its partitions."""
    with failures():
        machines = read_machines(home.open())
    partitions = {
        name: register(context.instance, machine.stack) for name, machine in machines.items()
    }
    for name, partition in partitions.items():
        context.log.info(f"worker {name}: partition {partition}")
    return dg.MaterializeResult(
        metadata={
            **{f"stack_of_{name}": stack_table(item.stack) for name, item in machines.items()},
            "workers": table(
                {"worker": "string", "partition": "string", "stack_key": "string",
                 "snapshots": "string"},
                [
                    (name, str(partitions[name]), item.stack.key,
                     "can be taken" if item.engine else item.no_engine_why)
                    for name, item in machines.items()
                ],
            ),
        }
    )  # fmt: skip
