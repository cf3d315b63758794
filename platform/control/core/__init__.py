"""Infrastructure without domain logic: settings, API conventions, storage, child processes, logs and traces."""
