select * rename (engine as snapshot_engine)
from {{ source('raw', 'snapshots') }}
