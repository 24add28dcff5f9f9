"""Agents that work together, each flow an ordinary graph."""
