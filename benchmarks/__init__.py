"""What a step, a branch, a tool call cost: side by side with LangGraph and plain asyncio. Run by `make bench`."""
