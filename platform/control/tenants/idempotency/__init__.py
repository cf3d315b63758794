"""`Idempotency-Key`: a POST that may be sent again without being done again."""
