-- Compared at one size, number of ranks and backend: bandwidth depends on all of them.
with measured as (
    select
        {{ run_columns('runs') }},
        collectives.operation,
        collectives.arm,
        collectives.backend,
        collectives.ranks,
        collectives.bytes,
        collectives.outcome,
        collectives.transports,
        collectives.time_s,
        collectives.algbw_bytes_per_s,
        collectives.busbw_bytes_per_s
    from {{ ref('stg_collectives') }} as collectives
    inner join {{ ref('stg_runs') }} as runs using (run_id)
),

grouped as (
    select
        worker,
        basis,
        stack_key,
        any_value(hardware_label) as hardware_label,
        any_value(software_label) as software_label,
        backend,
        operation,
        arm,
        ranks,
        bytes,
        count(*) filter (where outcome = 'ok') as n,
        count(*) filter (where outcome = 'failed') as n_failed,
        list_sort(list_distinct(flatten(list(transports) filter (where outcome = 'ok'))))
            as transports,
        list(time_s) filter (where outcome = 'ok') as times_s,
        list(algbw_bytes_per_s) filter (where outcome = 'ok') as algbws,
        list(busbw_bytes_per_s) filter (where outcome = 'ok') as busbws
    from measured
    group by worker, basis, stack_key, backend, operation, arm, ranks, bytes
),

estimated as (
    select
        *,
        list_median(busbws) as busbw_median_bytes_per_s,
        median_ci(busbws) as busbw_ci
    from grouped
)

select
    arms.worker,
    arms.basis,
    arms.stack_key,
    arms.hardware_label,
    arms.software_label,
    arms.backend,
    arms.operation,
    arms.arm,
    arms.ranks,
    arms.bytes,
    arms.n,
    arms.n_failed,
    coalesce(arms.transports, []) as transports,
    list_median(arms.times_s) as time_median_s,
    list_median(arms.algbws) as algbw_median_bytes_per_s,
    arms.busbw_median_bytes_per_s,
    arms.busbw_ci.low as busbw_ci_low_bytes_per_s,
    arms.busbw_ci.high as busbw_ci_high_bytes_per_s,
    arms.busbw_median_bytes_per_s / nullif(healthy.busbw_median_bytes_per_s, 0)
        as fraction_of_healthy
from estimated as arms
left join estimated as healthy
    on
        arms.worker = healthy.worker
        and arms.basis = healthy.basis
        and arms.stack_key = healthy.stack_key
        and arms.backend = healthy.backend
        and arms.operation = healthy.operation
        and arms.ranks = healthy.ranks
        and arms.bytes = healthy.bytes
        and healthy.arm = 'healthy'
