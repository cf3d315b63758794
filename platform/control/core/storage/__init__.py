"""Object storage, staging of uploads, and deletion of objects that a rolled-back transaction stored."""
