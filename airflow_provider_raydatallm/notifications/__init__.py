"""Messages about slices, by whatever notifier sends them.

Comes in: the context of a callback or a deadline. Goes out: figures and links, for a notifier's templates.
Never here: rows' texts, errors' texts, a connection of its own.
"""
