-- A gate is too strict where it refuses what always worked, and too lax where it lets pass what
-- failed even once. Each try is judged by what the gate said of it: snapshots of one stack can differ.
select
    worker,
    basis,
    source_stack_key,
    source_hardware_label,
    source_software_label,
    stack_key,
    hardware_label,
    software_label,
    image_edit,
    any_value(differing_dimensions order by run_id, measurement_id) as differing_dimensions,
    count(*) as n,
    count(*) filter (where outcome = 'ok') as n_ok,
    count(*) filter (where outcome = 'failed') as n_failed,
    bool_and(predicted_compatible) as predicted_compatible,
    mode(reason_code order by run_id, measurement_id) as reason_code,
    case
        when bool_or(predicted_compatible and outcome = 'failed') then 'too_lax'
        when bool_or(not predicted_compatible)
            and not bool_or(not predicted_compatible and outcome = 'failed') then 'too_strict'
        else 'right'
    end as gate,
    median(elapsed_s) as median_elapsed_s,
    sum(wasted_gpu_s order by run_id, measurement_id) as wasted_gpu_s,
    max(started_at) as last_at
from {{ ref('compatibility_trials') }}
group by all
