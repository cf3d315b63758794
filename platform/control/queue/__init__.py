"""Jobs: claims, leases, shards, failures and fair turns between organizations."""
