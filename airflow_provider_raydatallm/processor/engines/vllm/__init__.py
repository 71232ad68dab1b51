"""The provider's own vLLM engine: feeders on CPUs, workers on GPUs.

In come requests (messages and sampling parameters), out go answers in groups as they finish. A worker never
tokenizes, and a feeder never loads a model.
"""
