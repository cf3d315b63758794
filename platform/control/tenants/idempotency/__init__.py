"""`Idempotency-Key`: a POST request that is sent again is not executed again."""
