-- Stacks stand in the order of their first start by any arm, the same for all arms: one whose cold
-- starts came later than those of a newer stack is still the older one.
with placed as (
    select
        summary.*,
        stacks.* exclude (stack_key, first_measured_at, last_measured_at, runs),
        min(summary.first_started_at) over (
            partition by
                summary.worker, summary.basis, stacks.hardware_key, stacks.model, summary.stack_key
        ) as stack_first_started_at
    from {{ ref('startup_summary') }} as summary
    inner join {{ ref('stacks') }} as stacks using (stack_key)
    where summary.n > 0
),

series as (
    select
        *,
        lag(stack_key) over in_order as previous_stack_key,
        lag(median_s) over in_order as previous_median_s
    from placed
    window in_order as (
        partition by worker, basis, hardware_key, model, arm
        order by stack_first_started_at, stack_key
    )
)

select
    series.worker,
    series.basis,
    series.hardware_key,
    series.hardware_label,
    series.model,
    series.arm,
    series.stack_key,
    series.software_label,
    series.first_started_at,
    series.n,
    series.median_s,
    series.ci_low_s,
    series.ci_high_s,
    series.previous_stack_key,
    series.previous_median_s,
    series.median_s / nullif(series.previous_median_s, 0) - 1 as change_fraction,
    case when previous.stack_key is not null then concat_ws(
        ', ',
        {% for name in stack_dimensions() -%}
        case when series.{{ name }} is distinct from previous.{{ name }} then '{{ name }}' end
        {{- ',' if not loop.last }}
        {% endfor %}
    ) end as changed_dimensions
from series
left join {{ ref('stacks') }} as previous
    on series.previous_stack_key = previous.stack_key
