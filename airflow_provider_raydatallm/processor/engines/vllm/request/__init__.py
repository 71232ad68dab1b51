"""From a row's request to what a worker takes.

In: requests (JSON), as `processor/request` builds them. Out: token ids and parameters, as JSON text. Never:
an import of vLLM or torch.
"""
