"""Speaker registry: the SDK and the wire contract."""
