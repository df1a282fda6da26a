-- Every raw row is in its mart, once.
{% for mart, table in [
    ('runs', 'runs'),
    ('stacks', 'stacks'),
    ('startup_measurements', 'startups'),
    ('snapshots', 'snapshots'),
    ('fault_runs', 'faults'),
    ('fault_detections', 'fault_detections'),
    ('fault_events', 'fault_events'),
    ('compatibility_trials', 'compatibility'),
    ('releases', 'releases'),
    ('baselines', 'baselines'),
    ('samples', 'samples'),
] %}
select '{{ mart }}' as mart, made.rows_made, found.rows_found
from (select count(*) as rows_made from {{ ref(mart) }}) as made
cross join (select count(*) as rows_found from {{ source('raw', table) }}) as found
where made.rows_made <> found.rows_found
{{ 'union all' if not loop.last }}
{% endfor %}
