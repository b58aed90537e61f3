"""Where samples come from: files of known forms, the Hub, and the cache of both."""
