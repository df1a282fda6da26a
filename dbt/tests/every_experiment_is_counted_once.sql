-- The verdicts of a summary add up to the experiments it comes from.
with counted as (
    select
        worker,
        basis,
        stack_key,
        planned_fault,
        layer,
        recovery,
        n,
        n_pass + n_fail + n_inconclusive + n_not_injected + n_not_applicable + n_aborted
        + n_rollback_failed as verdicts
    from {{ ref('fault_summary') }}
),

measured as (
    select
        worker,
        basis,
        stack_key,
        planned_fault,
        layer,
        recovery,
        count(*) as n,
        count(*) as verdicts
    from {{ ref('fault_runs') }}
    where not control
    group by all
)

(from counted except all from measured)
union all
(from measured except all from counted)
