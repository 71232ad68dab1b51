"""What must hold of a slice between stage and commit."""
