"""The provider's own vLLM engine: its arguments and sizes, and the workers that hold the GPUs.

In come rows of token ids, out go groups of finished answers. A worker never tokenizes, and a feeder never
loads a model.
"""
