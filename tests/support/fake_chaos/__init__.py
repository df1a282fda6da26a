"""Stateful fakes of the operators of Chaos Mesh and Litmus, for the fake cluster.

They read the same objects, write the same status, hold the same finalizers and really do something
to a pod of the fake cluster: its process is killed, the proxy delays or cuts its answers. Each can
be made to fail in the ways that the real one does.
"""
