"""Three questions of an analyst, answered from the published file with polars and plotly.

Run it with `marimo edit docs/examples/analyst_notebook.py`. It reads RESILIENCE_HOME, else
`.resilience`.
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import os
    from pathlib import Path

    import duckdb
    import marimo as mo
    import plotly.graph_objects as go
    import polars as pl

    published = Path(os.environ.get("RESILIENCE_HOME", ".resilience"), "published")
    connection = duckdb.connect(str(published / "resilience.duckdb"), read_only=True)

    def ask(sql: str) -> pl.DataFrame:
        return connection.sql(sql).pl()

    return ask, go, mo, pl


@app.cell
def _(ask, mo):
    # One worker on one basis and one stack at a time: results of two are never mixed.
    # The newest with more than one way to start comes first.
    scopes = ask(
        "select worker, basis, stack_key, software_label, hardware_label from stacks "
        "inner join startup_summary using (stack_key) where n > 0 group by all "
        "order by count(distinct arm) > 1 desc, any_value(last_measured_at) desc, worker, basis"
    ).to_dicts()
    mo.stop(not scopes, mo.md("No start-up results are published yet: `resilience load`."))
    scope = next((row for row in scopes if row["basis"] == "measured"), scopes[0])
    where = (
        f"worker = '{scope['worker']}' and basis = '{scope['basis']}' "
        f"and stack_key = '{scope['stack_key']}'"
    )
    mo.md(f"# {scope['software_label']} on {scope['hardware_label']} ({scope['basis']})")
    return scope, where


@app.cell
def _(ask, go, mo, where):
    arms = ask(
        f"select arm, n, median_s, ci_low_s, ci_high_s from startup_summary "
        f"where {where} and n > 0 order by median_s"
    )
    arms_figure = go.Figure(
        go.Scatter(
            x=arms["median_s"],
            y=arms["arm"],
            mode="markers",
            error_x={
                "type": "data",
                "symmetric": False,
                "array": arms["ci_high_s"] - arms["median_s"],
                "arrayminus": arms["median_s"] - arms["ci_low_s"],
            },
            text=[f"n = {n}" for n in arms["n"]],
        )
    ).update_layout(xaxis={"title": "median start, seconds (95 % interval)", "type": "log"})
    mo.vstack([mo.md("## 1. How fast is each way to start?"), arms_figure])
    return arms, arms_figure


@app.cell
def _(ask, go, mo, where):
    phases = ask(
        f"select arm, phase, n, median_s, order_in_start from startup_phase_summary "
        f"where {where} order by arm, order_in_start"
    )
    phases_figure = go.Figure(
        [
            go.Bar(x=part["median_s"], y=part["arm"], name=phase, orientation="h")
            for (phase,), part in phases.group_by("phase", maintain_order=True)
        ]
    ).update_layout(barmode="stack", xaxis_title="median of each phase, seconds")
    mo.vstack([mo.md("## 2. Where does the time of a start go?"), phases_figure])
    return phases, phases_figure


@app.cell
def _(arms, ask, mo, pl, where):
    medians = dict(arms.select("arm", "median_s").iter_rows())
    costs = ask(
        f"select snapshot_id, total_s, image_bytes from snapshots where {where} "
        "and outcome = 'ok' order by started_at"
    )
    restore_s = medians.get("restore")
    others = {arm: s for arm, s in medians.items() if arm in ("cold", "warm_cache")}
    # A restore that is not faster never pays the snapshot back.
    break_even = pl.concat(
        [
            costs.select(
                "snapshot_id", "total_s", pl.lit(arm).alias("instead_of"),
                (pl.col("total_s") / (other_s - restore_s)).ceil().cast(pl.Int64).alias("restores"),
            )
            for arm, other_s in others.items()
            if restore_s is not None and restore_s < other_s
        ]
        or [
            pl.DataFrame(
                schema={"snapshot_id": pl.String, "total_s": pl.Float64, "instead_of": pl.String,
                        "restores": pl.Int64}
            )
        ]
    )  # fmt: skip
    mo.vstack([mo.md("## 3. After how many restores has a snapshot paid off?"), break_even])
    return (break_even,)


if __name__ == "__main__":
    app.run()
