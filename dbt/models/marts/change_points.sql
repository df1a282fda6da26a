-- A change is named by its series, the stacks on both sides and how often that has been, so that its
-- name stays when more points come; where no known dimension differs, by its moment too.
-- Every right start is a point of its series. A change is put down to what differs between the two
-- stacks at its place or, since a place can be off by one, right beside it. Another data set may be
-- another machine of the same kind, so it is a candidate too.
-- Only what stands beside a change is carried on: whole series, once for each of their changes, are
-- more than a machine's memory where there are many runs.
{% set of_series = 'worker, basis, hardware_key, model, arm, variant' -%}

with starts as (
    select startup_measurements.*, stacks.model, runs.data_set
    from {{ ref('startup_measurements') }} as startup_measurements
    inner join {{ ref('stacks') }} as stacks using (stack_key)
    inner join {{ ref('stg_runs') }} as runs using (run_id)
    where startup_measurements.result = 'right'
),

points as (
    select
        *,
        row_number() over (
            partition by {{ of_series }} order by started_at, run_id, measurement_id
        ) as place
    from starts
),

series as (
    select
        {{ of_series }},
        any_value(hardware_label) as hardware_label,
        level_changes(list(total_s order by place), list(run_id order by place)) as changes
    from points
    group by {{ of_series }}
),

found as (
    select * exclude (changes), unnest(changes) as change from series
),

beside as (
    select
        *,
        unnest([
            change.position - 2, change.position - 1, change.position, change.position + 1
        ]) as place
    from found
),

surrounded as (
    select
        beside.* exclude (place),
        map_from_entries(list((points.place, points.stack_key))) as keys,
        map_from_entries(list((points.place, points.data_set))) as data_sets,
        map_from_entries(list((points.place, points.started_at))) as moments
    from beside
    inner join points
        on
            beside.worker = points.worker
            and beside.basis = points.basis
            and beside.hardware_key = points.hardware_key
            and beside.model is not distinct from points.model
            and beside.arm = points.arm
            and beside.variant is not distinct from points.variant
            and beside.place = points.place
    group by all
),

placed as (
    select
        surrounded.*,
        coalesce(
            list_filter(
                [change.position, change.position - 1, change.position + 1],
                lambda place : keys[place] <> keys[place - 1]
            )[1],
            change.position
        ) as place
    from surrounded
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
