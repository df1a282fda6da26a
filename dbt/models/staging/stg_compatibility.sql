-- The image that was restored is a stored snapshot, or with `+` and a name an edited copy of one.
select
    * exclude (snapshot_id),
    split_part(snapshot_id, '+', 1) as snapshot_id,
    nullif(split_part(snapshot_id, '+', 2), '') as image_edit
from {{ source('raw', 'compatibility') }}
