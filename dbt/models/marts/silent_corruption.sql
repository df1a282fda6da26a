-- What a load does of itself, and what the hashes see, are two questions: a load that refuses would
-- otherwise hide that no hash noticed, and the other way round. Only proved damage counts.
with loads as (
    select
        worker,
        basis,
        stack_key,
        hardware_label,
        software_label,
        strategy,
        planned_fault,
        layer,
        run_id,
        measurement_id,
        parameters::json ->> 'at_load' as at_load,
        at_load in ('wrong_answer', 'wrong_state', 'restored') as silent,
        (parameters::json ->> 'steps_lost')::bigint as steps_lost
    from {{ ref('fault_runs') }}
    where
        not control
        and effect_proved
        and strategy in ('weights', 'snapshot_image', 'distributed_checkpoint')
),

verified as (
    select
        run_id,
        measurement_id,
        bool_or(detected) as seen
    from {{ ref('fault_detections') }}
    where detector in ('weights_verifier', 'image_verifier', 'checkpoint_verifier')
    group by run_id, measurement_id
),

counted as (
    select
        loads.worker,
        loads.basis,
        loads.stack_key,
        any_value(loads.hardware_label) as hardware_label,
        any_value(loads.software_label) as software_label,
        loads.strategy,
        loads.planned_fault,
        loads.layer,
        count(*) as n,
        count(*) filter (where loads.at_load = 'refused') as n_refused,
        count(*) filter (where loads.silent) as n_silent,
        count(*) filter (where loads.at_load in ('same_answer', 'same_state')) as n_unchanged,
        count(verified.seen) as n_verified,
        count(*) filter (where verified.seen) as n_hash_mismatch,
        count(*) filter (where loads.silent and not coalesce(verified.seen, false))
            as n_undetected,
        median(loads.steps_lost) as steps_lost_median
    from loads
    left join verified using (run_id, measurement_id)
    group by
        loads.worker, loads.basis, loads.stack_key, loads.strategy, loads.planned_fault,
        loads.layer
)

select
    worker,
    basis,
    stack_key,
    hardware_label,
    software_label,
    strategy,
    planned_fault,
    layer,
    n,
    n_refused + n_silent + n_unchanged as n_loads,
    n_refused,
    n_silent,
    n_unchanged,
    n_verified,
    n_hash_mismatch,
    n_undetected,
    n_silent / nullif(n_refused + n_silent + n_unchanged, 0) as silent_fraction,
    n_undetected / nullif(n_refused + n_silent + n_unchanged, 0) as undetected_fraction,
    steps_lost_median
from counted
