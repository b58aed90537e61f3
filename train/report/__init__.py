"""Turn records into tables, plots and sentences; the runs themselves measured every number."""
