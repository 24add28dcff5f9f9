"""What a step, a branch, a tool call, a streamed chunk cost: beside LangGraph, the openai SDK and plain asyncio."""
