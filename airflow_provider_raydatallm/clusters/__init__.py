"""Where Ray runs: a port with one file or folder for each kind of cluster.

In: an identity from a record, or what a connection means. Out: a `Cluster` to acquire, reach and release.
Never here: calls to the Jobs API, decisions about tasks or jobs. Nobody outside asks of which kind a cluster
is: a method or a capability answers instead.
"""
