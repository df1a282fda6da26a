-- Folders that could not be loaded, with the reason.
{{ config(severity='warn') }}
select folder, reason
from {{ source('raw', 'rejected') }}
