select * exclude (variant)
from {{ ref('startup_variants') }}
where variant is null
