"""Everything on one machine, without Kubernetes."""
