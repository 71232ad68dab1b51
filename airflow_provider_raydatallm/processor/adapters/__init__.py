"""LoRA adapters as files: checked against the model, and copied to nodes, in folders named by their content.

In come the folders that a job names, out come adapters and their copies. Nothing here loads one into a
model.
"""
