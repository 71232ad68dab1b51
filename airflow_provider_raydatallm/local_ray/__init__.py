"""local_ray."""
