"""Jobs with their leases, fencing tokens, shards and events, all kept in the database."""
