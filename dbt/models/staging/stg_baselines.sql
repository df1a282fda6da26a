select *
from {{ source('raw', 'baselines') }}
