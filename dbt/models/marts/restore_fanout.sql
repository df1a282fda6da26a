-- By the page cache as it was found: what a wave asked for may not have come about.
with measured as (
    select
        {{ run_columns('runs') }},
        fanout.run_id,
        fanout.width,
        fanout.repeat,
        fanout.page_cache_requested,
        fanout.page_cache_found as page_cache,
        fanout.outcome,
        fanout.total_s,
        fanout.wave_s,
        fanout.image_bytes,
        fanout.disk_bytes_per_s
    from {{ ref('stg_fanout') }} as fanout
    inner join {{ ref('stg_runs') }} as runs using (run_id)
),

-- A wave's own figures stand in each of its rows.
waves as (
    select
        worker,
        basis,
        stack_key,
        width,
        page_cache,
        count(*) as n_waves,
        median(wave_s) as wave_median_s,
        median(image_bytes) as image_median_bytes,
        median(disk_bytes_per_s) as disk_median_bytes_per_s,
        median(width * image_bytes / nullif(wave_s, 0)) as restored_median_bytes_per_s
    from (
        select distinct
            worker, basis, stack_key, run_id, width, repeat, page_cache_requested, page_cache,
            wave_s, image_bytes, disk_bytes_per_s
        from measured
    )
    group by worker, basis, stack_key, width, page_cache
),

restores as (
    select
        worker,
        basis,
        stack_key,
        any_value(hardware_label) as hardware_label,
        any_value(software_label) as software_label,
        width,
        page_cache,
        count(*) filter (where outcome = 'ok') as n,
        count(*) filter (where outcome = 'failed') as n_failed,
        median(total_s) filter (where outcome = 'ok') as p50_s,
        median_ci(list(total_s) filter (where outcome = 'ok')) as ci,
        quantile_disc(total_s, 0.99) filter (where outcome = 'ok') as p99_s
    from measured
    group by worker, basis, stack_key, width, page_cache
)

select
    many.worker,
    many.basis,
    many.stack_key,
    many.hardware_label,
    many.software_label,
    many.width,
    many.page_cache,
    waves.n_waves,
    many.n,
    many.n_failed,
    many.p50_s,
    many.ci.low as p50_ci_low_s,
    many.ci.high as p50_ci_high_s,
    many.p99_s,
    many.p50_s / nullif(alone.p50_s, 0) as p50_over_alone,
    waves.wave_median_s,
    waves.image_median_bytes,
    waves.restored_median_bytes_per_s,
    waves.disk_median_bytes_per_s,
    waves.image_median_bytes / waves.disk_median_bytes_per_s as image_from_disk_s
from restores as many
inner join waves using (worker, basis, stack_key, width, page_cache)
left join restores as alone
    on
        many.worker = alone.worker
        and many.basis = alone.basis
        and many.stack_key = alone.stack_key
        and many.page_cache = alone.page_cache
        and alone.width = 1
