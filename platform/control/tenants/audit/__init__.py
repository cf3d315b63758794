"""Who did what: one event for every change that somebody asked for, never altered."""
