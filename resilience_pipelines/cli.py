"""The `resilience` command.

What belongs here: its parts put together, exit codes, and commands that are no part of a group.
What does not: the groups (`cli_run`, `cli_faults`, `cli_snapshots`, `cli_results`), what they share
(`cli_common`), and any work. Each command parses its options, calls the library and shows what came
back; docs/python.md names what it calls.

Exit codes: 0 done; 1 failed; 2 bad input; 3 this machine can't; 4 busy; 5 storage; 6 corrupt data;
7 deadline; 8 not enough data; 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from resilience_pipelines import __version__, cli_faults, cli_results, cli_run, cli_snapshots
from resilience_pipelines.answers import write_file
from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    WorkerOption,
    err,
    out,
    print_json,
    progress_bar,
    show_rows,
    stop,
    tell,
)
from resilience_pipelines.cli_tables import print_record
from resilience_pipelines.demo import FAULTS, run_demo
from resilience_pipelines.errors import InputError, ResilienceError
from resilience_pipelines.home import open_home

app = typer.Typer(
    help="Resilience benchmarking of GPU inference: snapshots, faults, start-up, trends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
kubernetes_app = typer.Typer(help="Jobs on a Kubernetes cluster (docs/kubernetes.md).")
app.add_typer(cli_faults.app, name="faults", no_args_is_help=True)
app.add_typer(kubernetes_app, name="kubernetes", no_args_is_help=True)
app.add_typer(cli_run.app, name="run", no_args_is_help=True)
app.add_typer(cli_snapshots.app, name="snapshot", no_args_is_help=True)
app.add_typer(cli_results.app)


def main() -> None:
    """Run the command; errors of ours become a message and their exit code."""
    try:
        # Outside click's standalone mode an early exit comes back as a value.
        sys.exit(app(standalone_mode=False) or 0)
    except ResilienceError as error:
        # Imported here: a command that ends well need not wait for it.
        from resilience_pipelines.redaction import redact

        reason = escape(redact(error.reason))
        err.print(f"[bold red]error:[/] {reason}", highlight=False, soft_wrap=True)
        if error.mend:
            err.print(f"[bold]mend:[/]  {escape(error.mend)}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(130)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except Exception as error:
        # Click's usage errors know how to show themselves; anything else is a bug of ours.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(error, "exit_code", 2))


def _version(asked: bool) -> None:
    if asked:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Say what this machine can do, and for what it can't: why, and what would help."""
    from resilience_pipelines.doctor import diagnose, render

    diagnosis = diagnose(open_home(home).root)
    if as_json:
        out.print_json(diagnosis.to_json())
    else:
        render(diagnosis, out)


@app.command()
def stack(
    worker: WorkerOption = "reference", home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Show the stack of this machine: every dimension of hardware and software, and its key."""
    from resilience_pipelines.context import stack_here

    found = stack_here(open_home(home), worker)
    values = {
        **found.model_dump(),
        "key": found.key,
        "hardware_label": found.hardware_label,
        "software_label": found.software_label,
    }
    if as_json:
        print_json(values)
        return
    print_record(
        {name: "[dim]not known[/]" if v is None else escape(str(v)) for name, v in values.items()},
        out,
    )


@kubernetes_app.command("clean")
def kubernetes_clean(
    settings: Annotated[
        Path | None, typer.Option(help="Settings; kubernetes.toml in the data home if none.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what killed launchers of this data home left. What their jobs landed stays."""
    from resilience_pipelines.launchers.choice import clean_cluster

    removed = clean_cluster(open_home(home), settings)
    show_rows([{"removed_run": run_id} for run_id in removed], as_json)


@app.command()
def ci(
    suite_file: Annotated[
        Path, typer.Argument(metavar="SUITE", help="The suite, a TOML file (docs/ci.md).")
    ],
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write Markdown to this file.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a suite of jobs for a CI system; the exit code is its verdict.

    Exit codes: 0 pass, 1 fail, 8 not enough data, else that of the job that could not run.
    """
    from resilience_pipelines.ci.junit import to_junit
    from resilience_pipelines.ci.run import Tell, run_suite
    from resilience_pipelines.ci.suite import read_suite
    from resilience_pipelines.ci.summary import to_markdown

    suite = read_suite(suite_file)
    for option, file in (("--junit", junit), ("--summary", summary)):
        if file is not None and not file.absolute().parent.is_dir():
            raise InputError(option, str(file), "its folder is not there", mend="Make it first.")
    signal.signal(signal.SIGTERM, stop)
    with progress_bar(as_json) as report:
        done = run_suite(suite, home, Tell(report, tell))
    if junit is not None:
        write_file(junit, to_junit(done))
    if summary is not None:
        write_file(summary, to_markdown(done).encode())
    if as_json:
        print_json(done.as_dict())
    else:
        sys.stdout.write(to_markdown(done))
    if done.exit_code:
        raise typer.Exit(done.exit_code)


@app.command()
def demo(
    repeats: Annotated[int, typer.Option(help="Starts of each arm; cold at most 2.")] = 3,
    fault_repeats: Annotated[int, typer.Option(help="Experiments of each fault.")] = 1,
    faults: Annotated[
        str, typer.Option(help="Faults, separated by commas; '' for all of the catalogue.")
    ] = ",".join(FAULTS),
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the whole main job on this machine through Dagster, and say what came out of it."""
    done = run_demo(
        open_home(home),
        repeats=repeats,
        fault_repeats=fault_repeats,
        faults=faults,
        quiet=as_json,
    )
    if as_json:
        print_json(done.as_dict())
        return
    startup = done.startup
    if startup["stack_key"].n_unique() == startup["worker"].n_unique():
        # Without the key, which tells no more then, the table fits into 80 columns.
        startup = startup.drop("stack_key")
    show_rows(startup.to_dicts(), False)
    show_rows(done.faults.to_dicts(), False)
    out.print()
    print_record(
        {
            "dashboard": escape(str(done.dashboard)),
            "database": escape(str(done.published)),
            "took": f"{done.seconds:.1f} s",
        },
        out,
    )


if __name__ == "__main__":
    main()
