select
    feed,
    product,
    version,
    state,
    branch,
    kind,
    released,
    prerelease,
    withdrawn,
    checked_at
from {{ ref('stg_releases') }}
