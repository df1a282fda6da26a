select
    samples.run_id,
    samples.subject,
    runs.worker,
    runs.basis,
    runs.stack_key,
    samples.at_s,
    samples.series,
    samples.unit,
    samples.value
from {{ ref('stg_samples') }} as samples
inner join {{ ref('stg_runs') }} as runs using (run_id)
