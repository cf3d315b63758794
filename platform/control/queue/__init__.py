"""The job queue: claims, leases, shards, failures and fair scheduling between organizations."""
