-- A change is named by its series, the stacks on both sides and how often that has been, so that its
-- name stays when more points come; where no known dimension differs, by its moment too.
-- Every right start is a point of its series. A change is put down to what differs between the two
-- stacks at its place or, since a place can be off by one, right beside it. Another data set may be
-- another machine of the same kind, so it is a candidate too.
{% set in_time = 'order by starts.started_at, starts.run_id, starts.measurement_id' -%}

with series as (
    select
        starts.worker,
        starts.basis,
        starts.hardware_key,
        any_value(starts.hardware_label) as hardware_label,
        stacks.model,
        starts.arm,
        starts.variant,
        list(starts.total_s {{ in_time }}) as totals_s,
        list(starts.run_id {{ in_time }}) as runs,
        list(starts.stack_key {{ in_time }}) as keys,
        list(runs.data_set {{ in_time }}) as data_sets,
        list(starts.started_at {{ in_time }}) as moments
    from {{ ref('startup_measurements') }} as starts
    inner join {{ ref('stacks') }} as stacks using (stack_key)
    inner join {{ ref('stg_runs') }} as runs using (run_id)
    where starts.result = 'right'
    group by
        starts.worker, starts.basis, starts.hardware_key, stacks.model, starts.arm, starts.variant
),

found as (
    select
        series.* exclude (totals_s, runs),
        unnest(level_changes(totals_s, runs)) as change
    from series
),

placed as (
    select
        found.*,
        coalesce(
            list_filter(
                [change.position, change.position - 1, change.position + 1],
                lambda place : place between 2 and len(keys) and keys[place] <> keys[place - 1]
            )[1],
            change.position
        ) as place
    from found
),

explained as (
    select
        placed.*,
        {{ differing_dimensions('old', 'new') }} || case
            when placed.data_sets[placed.place - 1] <> placed.data_sets[placed.place]
                then ['data_set']
            else []
        end as candidate_dimensions
    from placed
    inner join {{ ref('stacks') }} as old on placed.keys[placed.place - 1] = old.stack_key
    inner join {{ ref('stacks') }} as new on placed.keys[placed.place] = new.stack_key
),

named as (
    select
        *,
        moments[change.position] as changed_at,
        keys[place - 1] as previous_stack_key,
        keys[place] as stack_key,
        left(md5(concat_ws(
            '|', worker, basis, hardware_key, coalesce(model, ''), arm, coalesce(variant, ''),
            keys[place - 1], keys[place],
            case
                when keys[place - 1] = keys[place]
                    then epoch_us(moments[change.position])::varchar
                else ''
            end,
            row_number() over (
                partition by
                    worker, basis, hardware_key, model, arm, variant, keys[place - 1], keys[place]
                order by change.position
            )
        )), 12) as change_id
    from explained
)

select
    change_id,
    worker,
    basis,
    hardware_key,
    hardware_label,
    model,
    arm,
    variant,
    changed_at,
    previous_stack_key,
    stack_key,
    change.n_before,
    change.n_after,
    change.before as before_median_s,
    change.after as after_median_s,
    change.fraction as change_fraction,
    change.low as change_low,
    change.high as change_high,
    change.threshold as noise_threshold,
    change.significant,
    change.relevant,
    case len(candidate_dimensions)
        when 0 then 'unexplained'
        when 1 then 'one_dimension'
        else 'candidates'
    end as attribution,
    candidate_dimensions,
    decisions.decision,
    decisions.note as decision_note,
    decisions.decided_by,
    decisions.decided_at
from named
left join {{ ref('stg_change_decisions') }} as decisions using (change_id)
