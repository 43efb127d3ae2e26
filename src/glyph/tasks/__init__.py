"""Tasks: sources (MBPP, mini), splits, prompts, mutations, demonstrations and their validation."""
