-- No data is never a pass: effect (but of a control), rollback and answer were proved.
select run_id, measurement_id, planned_fault
from {{ ref('fault_runs') }}
where
    verdict = 'pass'
    and not (
        (control or coalesce(effect_proved, false))
        and coalesce(rollback_proved, false)
        and oracle_verdict = 'equal'
    )
