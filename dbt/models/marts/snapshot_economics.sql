-- A snapshot costs the time in which its source does not serve, and the room for its image; each
-- restore gives back what another start would have taken longer. No prices: they are the reader's.
with timed as (
    select
        worker,
        basis,
        stack_key,
        arm,
        list(total_s) as totals_s
    from {{ ref('startup_measurements') }}
    where result = 'right' and variant is null and arm in ('cold', 'warm_cache', 'restore')
    group by worker, basis, stack_key, arm
),

taken as (
    select
        worker,
        basis,
        stack_key,
        any_value(hardware_label) as hardware_label,
        any_value(software_label) as software_label,
        count(*) filter (where outcome = 'ok') as n_snapshots,
        count(*) filter (where outcome = 'failed') as n_snapshots_failed,
        median(total_s) filter (where outcome = 'ok') as take_median_s,
        median(image_bytes) filter (where outcome = 'ok') as image_median_bytes,
        sum(total_s order by run_id, measurement_id) as attempts_s
    from {{ ref('snapshots') }}
    group by worker, basis, stack_key
    having n_snapshots > 0
),

compared as (
    select
        taken.*,
        stacks.gpu_count,
        others.arm as versus,
        len(restores.totals_s) as n_restores,
        len(others.totals_s) as n_other,
        list_median(restores.totals_s) as restore_median_s,
        list_median(others.totals_s) as other_median_s,
        other_median_s - restore_median_s as saved_median_s,
        difference_ci(others.totals_s, restores.totals_s) as ci,
        n_restores * other_median_s - list_sum(list_sort(restores.totals_s)) - taken.attempts_s
            as net_saved_s
    from taken
    inner join {{ ref('stacks') }} as stacks using (stack_key)
    inner join timed as restores
        on
            taken.worker = restores.worker
            and taken.basis = restores.basis
            and taken.stack_key = restores.stack_key
            and restores.arm = 'restore'
    inner join timed as others
        on
            taken.worker = others.worker
            and taken.basis = others.basis
            and taken.stack_key = others.stack_key
            and others.arm <> 'restore'
)

select
    worker,
    basis,
    stack_key,
    hardware_label,
    software_label,
    versus,
    gpu_count,
    n_snapshots,
    n_snapshots_failed,
    take_median_s,
    image_median_bytes,
    n_restores,
    n_other,
    restore_median_s,
    other_median_s,
    saved_median_s,
    ci.low as saved_ci_low_s,
    ci.high as saved_ci_high_s,
    case
        when saved_median_s > 0 then cast(greatest(ceil(take_median_s / saved_median_s), 1) as bigint)
    end as restores_to_break_even,
    net_saved_s,
    take_median_s * gpu_count as take_gpu_s,
    saved_median_s * gpu_count as saved_gpu_s,
    net_saved_s * gpu_count as net_saved_gpu_s
from compared
