-- A launch without a landed run is here too: what came of it is its failure.
select
    launches.run_id,
    launches.launched_at,
    launches.ended_at,
    launches.launcher,
    launches.worker,
    launches.basis,
    runs.stack_key,
    launches.landed,
    launches.failure,
    launches.detail,
    launches.namespace,
    launches.job_name,
    launches.pod_name,
    launches.node,
    launches.image_id,
    launches.exit_code,
    launches.kubernetes_version,
    launches.container_runtime,
    launches.notices
from {{ ref('stg_launches') }} as launches
left join {{ ref('stg_runs') }} as runs using (run_id)
