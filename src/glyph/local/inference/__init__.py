"""From token ids to sampled ids: the continuous-batching core, its cache and graphs, and vLLM as another backend."""
