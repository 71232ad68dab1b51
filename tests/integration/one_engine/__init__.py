"""Tests that share one vLLM engine, which is started once: one process runs them, and before all others."""
