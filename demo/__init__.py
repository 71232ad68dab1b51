"""`make demo`: generates a customers dataset, trains a tiny model and runs a DAG. Nothing is downloaded."""
