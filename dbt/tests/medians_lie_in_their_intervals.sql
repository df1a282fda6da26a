-- Below two values there is a median and no interval; from two on both, one inside the other.
{% for table, median, low, high, n in [
    ('startup_variants', 'median_s', 'ci_low_s', 'ci_high_s', 'n'),
    ('startup_phase_summary', 'median_s', 'ci_low_s', 'ci_high_s', 'n'),
    ('startup_trend', 'median_s', 'ci_low_s', 'ci_high_s', 'n'),
    ('restore_speedup', 'speedup', 'ci_low', 'ci_high', 'least(n_restore, n_other)'),
] %}
select '{{ table }}' as mart, worker, stack_key, {{ median }} as estimate
from {{ ref(table) }}
where
    ({{ low }} is null) <> ({{ n }} < 2)
    or ({{ high }} is null) <> ({{ n }} < 2)
    or ({{ median }} is null) <> ({{ n }} < 1)
    or not coalesce({{ median }} between {{ low }} - 1e-9 and {{ high }} + 1e-9, true)
{{ 'union all' if not loop.last }}
{% endfor %}
