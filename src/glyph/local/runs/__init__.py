"""The folder of a run: checkpoints, metrics, traces, heartbeat, trackers; all written so that a kill loses nothing."""
