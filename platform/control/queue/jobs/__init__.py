"""Jobs: leases, fences, shards, events. The row is the job."""
