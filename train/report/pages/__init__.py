"""Turn numbers into a report's sentences, figures and pages."""
