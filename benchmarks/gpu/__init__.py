"""What needs a GPU. Run by hand, on the machine that has it: see `compare`."""
