-- The phases of a snapshot and what they leave unaccounted are its total.
select
    snapshots.run_id,
    snapshots.measurement_id,
    snapshots.total_s,
    sum(phases.duration_s) as explained_s
from {{ ref('snapshots') }} as snapshots
inner join {{ ref('snapshot_phases') }} as phases using (run_id, measurement_id)
where snapshots.outcome = 'ok'
group by all
having not coalesce(abs(explained_s - snapshots.total_s) <= 1e-6, false)
