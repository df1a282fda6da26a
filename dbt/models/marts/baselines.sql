-- One's own figure stands beside another's where engine, model's shape and arm are the same; hardware
-- and versions are those that each row names, so a difference is no verdict.
with own as (
    select
        summary.arm,
        summary.variant,
        stacks.engine,
        lower(split_part(stacks.model, '-seed-', 1)) as model,
        summary.stack_key,
        stacks.hardware_label,
        stacks.software_label,
        summary.n,
        summary.median_s
    from {{ ref('startup_variants') }} as summary
    inner join {{ ref('stacks') }} as stacks using (stack_key)
    where summary.basis = 'measured' and summary.n > 0
    qualify row_number() over (
        partition by summary.arm, summary.variant, stacks.engine, lower(split_part(stacks.model, '-seed-', 1))
        order by stacks.last_measured_at desc, summary.stack_key
    ) = 1
)

select
    baselines.baseline_id,
    baselines.source,
    baselines.url,
    baselines.imported_at,
    baselines.product,
    baselines.figure,
    baselines.arm,
    baselines.variant,
    baselines.value,
    baselines.unit,
    baselines.statistic,
    baselines.n,
    baselines.gpu_sku,
    baselines.gpu_count,
    baselines.driver_version,
    baselines.engine,
    baselines.engine_version,
    baselines.model,
    baselines.detail,
    own.stack_key as own_stack_key,
    own.hardware_label as own_hardware_label,
    own.software_label as own_software_label,
    own.n as own_n,
    own.median_s as own_median_s
from {{ ref('stg_baselines') }} as baselines
left join own
    on
        baselines.arm = own.arm
        and baselines.engine = own.engine
        and lower(baselines.model) = own.model
        and baselines.unit = 's'
        and baselines.variant is not distinct from own.variant
