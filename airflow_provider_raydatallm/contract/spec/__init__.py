"""What a task asks for: the spec of a slice's job, and its parts as users give them.

In: arguments of the operator. Out: validated, immutable models, and their JSON. Never here: reading a
file, or asking Ray.
"""
