-- The phases of a start and what they leave unaccounted are its total.
select
    startups.run_id,
    startups.measurement_id,
    startups.total_s,
    sum(phases.duration_s) as explained_s
from {{ ref('startup_measurements') }} as startups
inner join {{ ref('startup_phases') }} as phases using (run_id, measurement_id)
where startups.total_s is not null
group by all
having not coalesce(abs(explained_s - startups.total_s) <= 1e-6, false)
