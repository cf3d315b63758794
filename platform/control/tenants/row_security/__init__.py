"""Row-level security of PostgreSQL, which separates the organizations. SQLite does not have it."""
