select
    stack_key,
    hardware_key,
    software_key,
    hardware_label,
    software_label,
    {% for name in stack_dimensions() -%}
    {{ name }},
    {% endfor -%}
    min(started_at) as first_measured_at,
    max(started_at) as last_measured_at,
    count(*) as runs
from {{ ref('stg_runs') }}
group by all
