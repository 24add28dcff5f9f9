"""An agent that waits for a human, over the end of its process."""
