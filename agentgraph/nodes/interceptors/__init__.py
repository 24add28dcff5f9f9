"""What may stand round an agent's calls of its model and its tools."""
