"""Metrics in, pages out: terminal tables, JSON, Markdown, and a rollout as a person reads it."""
