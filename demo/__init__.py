"""What `make demo` runs: a customers dataset and a tiny model, both made here: nothing is downloaded."""
