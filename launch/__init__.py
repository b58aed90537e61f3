"""A wish becomes commands on machines; nothing here needs torch."""
