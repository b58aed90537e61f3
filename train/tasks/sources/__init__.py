"""Sources of samples: files in known formats, the Hub, and the cache of both."""
