"""The kind `kuberay`: Ray clusters that tasks have made on Kubernetes, and that KubeRay makes and ends.

In: what a task wants of its cluster (`blueprint`). Out: a `Cluster`. Never here: Ray's Jobs API.
"""
