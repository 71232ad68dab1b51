"""Makes the documentation site of the Markdown in `docs/`, and those of its pages that come from code."""
