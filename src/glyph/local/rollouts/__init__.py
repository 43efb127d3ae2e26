"""Rollouts in this process: policies, the collector that drives episodes, and what they return."""
