"""The embedded engine: a generate core over Hugging Face transformers, its server, and in-process policies."""
