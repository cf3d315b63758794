"""Django's backend for SQLite, with turns for waiting writers. Django requires the module name `base`."""
