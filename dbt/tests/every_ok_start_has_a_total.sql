-- A start that ended well has a total, and one row says what of it is unaccounted.
select
    startups.run_id,
    startups.measurement_id,
    count(phases.phase) as unaccounted_rows
from {{ ref('startup_measurements') }} as startups
left join {{ ref('startup_phases') }} as phases
    on
        startups.run_id = phases.run_id
        and startups.measurement_id = phases.measurement_id
        and phases.phase = 'unaccounted'
where startups.outcome = 'ok'
group by startups.run_id, startups.measurement_id, startups.total_s
having startups.total_s is null or count(phases.phase) <> 1
