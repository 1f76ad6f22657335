"""Rules from the metrics of a run to verdicts, by kind of metric; `rlcore_report.verdicts` has the table."""
