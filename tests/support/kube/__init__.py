"""A Kubernetes API in memory, a KubeRay operator, and what runs in their pods: for tests without a cluster.

- `server.kube_server` serves the API to any client; `store.Store` holds its objects.
- `operator.RayOperator` acts as KubeRay does, by `jobs` and `clusters`; `kubelet` as scheduler and kubelet.
- `heads.FakeHeads` and `heads.RealHeads` are the processes behind pods.
"""
