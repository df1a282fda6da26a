select
    runs.*,
    stacks.* exclude (stack_key)
from {{ source('raw', 'runs') }} as runs
inner join {{ source('raw', 'stacks') }} as stacks using (stack_key)
