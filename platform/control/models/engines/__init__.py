"""Options of engines, and the plans of their memory, for endpoints and jobs alike."""
