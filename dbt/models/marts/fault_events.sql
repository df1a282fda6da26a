select
    events.run_id,
    events.measurement_id,
    faults.worker,
    faults.basis,
    faults.stack_key,
    faults.fault,
    faults.planned_fault,
    faults.layer,
    events.position_in_experiment,
    events.event,
    events.at_s,
    events.detail
from {{ ref('stg_fault_events') }} as events
inner join {{ ref('fault_runs') }} as faults using (run_id, measurement_id)
