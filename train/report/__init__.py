"""Records become tables, plots and sentences; every number was measured by the run it describes."""
