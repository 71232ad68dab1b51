"""The commands of the processor, and what every command of the provider has in common.

In: arguments. Out: text or JSON on stdout, progress and errors on stderr, an exit code. Never here: the work
itself.
"""
