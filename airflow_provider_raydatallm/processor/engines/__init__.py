"""Engines: whatever turns requests into answers. `base` is the interface; each other module is one of
them."""
