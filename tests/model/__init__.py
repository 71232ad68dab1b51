"""An executable model of how a slice is published: all interleavings of a few processes. See README.md."""
