"""The embedded scenes: drawn on demand, the same pixels on every machine."""
