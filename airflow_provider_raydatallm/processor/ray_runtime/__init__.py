"""ray_runtime."""
