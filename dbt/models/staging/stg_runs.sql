select
    runs.*,
    nullif(regexp_extract(runs.folder, '([^/]+)/date=[^/]*/[^/]+$', 1), '') as data_set,
    stacks.* exclude (stack_key)
from {{ source('raw', 'runs') }} as runs
inner join {{ source('raw', 'stacks') }} as stacks using (stack_key)
