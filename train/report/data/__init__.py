"""Turn records into the numbers of a report: read, count and compare them."""
