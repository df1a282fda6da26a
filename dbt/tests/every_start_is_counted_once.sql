-- The classes of a summary add up to the starts they come from.
with counted as (
    select
        worker,
        basis,
        stack_key,
        arm,
        variant,
        n + n_failed + n_wrong_answer + n_not_checked + n_unsupported as starts
    from {{ ref('startup_variants') }}
),

measured as (
    select worker, basis, stack_key, arm, variant, count(*) as starts
    from {{ ref('startup_measurements') }}
    group by all
)

(from counted except all from measured)
union all
(from measured except all from counted)
