"""Speculative decoding: schedule, draft, score, verify, commit. No Django, no Celery, no Redis, no S3."""
