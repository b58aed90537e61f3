"""Numbers become a report's sentences, figures and pages."""
