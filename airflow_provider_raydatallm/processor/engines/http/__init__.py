"""Answers requests by an HTTP endpoint with OpenAI's API, such as a vLLM server.

In come the requests of rows, out go groups of their answers. The key never goes to another host than the
endpoint's, and an endpoint that is away puts no row into quarantine.
"""
