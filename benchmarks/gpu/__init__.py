"""What the measurements on a GPU share: the clock, ceilings, poisoned memory, shapes of models, records and tables."""
