"""The kind `embedded`: the Ray head of the connection host `local`, one per user and folder on this machine.

In: a folder. Out: a healthy `LocalHead`, with its address and token. Never here: an import of ray, or another
Ray's processes.
"""
