"""What the parts in a cluster share: the API, pods and whose they are, names, tokens and who may do what."""
