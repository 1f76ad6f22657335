"""Record where a run's time goes, and write it as a table, as JSON and as a trace (`run.profile`)."""
