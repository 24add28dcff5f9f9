"""Programs that use agentgraph as a user would."""
