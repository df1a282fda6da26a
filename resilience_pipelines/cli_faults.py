"""`resilience faults`: fault experiments as files of Chaos Toolkit, out and in.

What belongs here: options and what a person sees of those files. What does not: any work
(`faults.chaostoolkit`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    WorkerOption,
    err,
    options,
    out,
    print_json,
    split_list,
)
from resilience_pipelines.home import open_home

app = typer.Typer(help="Fault experiments as files of Chaos Toolkit, out and in.")


@app.command("export")
def faults_export(
    faults: Annotated[
        list[str] | None, typer.Argument(help="As in `resilience run fault`.")
    ] = None,
    worker: WorkerOption = "reference",
    recoveries: Annotated[str, typer.Option(help="Ways to recover, separated by commas.")] = "",
    repeats: Annotated[int, typer.Option(help="Experiments of each fault and recovery.")] = 1,
    controls: Annotated[bool, typer.Option(help="Also the control arms.")] = True,
) -> None:
    """Print a plan as an experiment of Chaos Toolkit (JSON)."""
    from resilience_pipelines.faults.chaostoolkit import make_experiment
    from resilience_pipelines.faults.run import FaultPlan

    plan = FaultPlan(tuple(faults or ()), tuple(split_list(recoveries)), repeats, controls)
    print_json(make_experiment(plan, worker))


@app.command("journal")
def faults_journal(
    run_id: Annotated[str, typer.Argument(help="The run: the name of its landing folder.")],
    measurement: Annotated[
        str | None, typer.Argument(help="The experiment; may be left out where there is one.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Print the result of an experiment as a journal of Chaos Toolkit (JSON)."""
    from resilience_pipelines.faults.chaostoolkit import make_journal
    from resilience_pipelines.warehouse.landing import read_run

    with options(run_id="RUN_ID", measurement="MEASUREMENT"):
        record = read_run(open_home(home).landing, run_id).record
        print_json(make_journal(record, measurement))


@app.command("import")
def faults_import(
    file: Annotated[Path, typer.Argument(help="An experiment or a journal (JSON).")],
    as_json: JsonOption = False,
) -> None:
    """Say what an experiment of Chaos Toolkit asks for, as a command. Nothing is injected."""
    import shlex

    from resilience_pipelines.faults.chaostoolkit import import_file

    with options(path="FILE"):
        imported = import_file(file)
    if as_json:
        print_json({"specification": imported.specification(), "left_out": list(imported.left_out)})
        return
    out.print(shlex.join(["resilience", *imported.arguments()]), soft_wrap=True, markup=False)
    for part in imported.left_out:
        err.print(f"left out: {part}", markup=False)
