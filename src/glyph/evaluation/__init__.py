"""Records in, numbers out: the trace reader, the metrics, their intervals and the paired comparisons."""
