select *
from {{ source('raw', 'launches') }}
