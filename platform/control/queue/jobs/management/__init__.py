"""Management commands of the job machinery."""
