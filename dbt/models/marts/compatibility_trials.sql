select
    trials.run_id,
    trials.measurement_id,
    trials.started_at,
    {{ run_columns('runs') }},
    trials.snapshot_id,
    trials.image_edit,
    trials.source_stack_key,
    sources.hardware_label as source_hardware_label,
    sources.software_label as source_software_label,
    {{ differing_dimensions('sources', 'targets') }} as differing_dimensions,
    trials.repeat,
    trials.predicted_compatible,
    trials.predictions,
    trials.outcome,
    trials.reason_code,
    trials.failed_phase,
    trials.detail,
    trials.elapsed_s,
    case
        when trials.outcome = 'failed' then trials.elapsed_s * coalesce(targets.gpu_count, 0)
        else 0
    end as wasted_gpu_s,
    trials.oracle_verdict
from {{ ref('stg_compatibility') }} as trials
inner join {{ ref('stg_runs') }} as runs using (run_id)
inner join {{ ref('stacks') }} as targets on runs.stack_key = targets.stack_key
inner join {{ ref('stacks') }} as sources on trials.source_stack_key = sources.stack_key
