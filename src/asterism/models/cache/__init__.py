"""The caches of a model that generates."""
