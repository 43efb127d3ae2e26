"""A model behind HTTP and behind Verifiers' client, on the inference core."""
