"""Row-level security: what PostgreSQL itself lets a connection see. SQLite has nothing of the kind."""
