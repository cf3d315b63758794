"""Where bytes lie: object storage, staging of uploads, and undo of what a rolled-back transaction stored."""
