"""Decode steps as CUDA graphs: one token for every live row, replayed in one launch instead of hundreds.

A graph has fixed shapes and fixed memory. So rows and visible lengths are rounded up to buckets, the inputs lie in
static buffers, and the cache has its full size from the start. The rows of a bucket that are not live are parked:
they feed token 0 at position 0 of their own cache row, which the row's next owner overwrites. A bucket's graph is
captured when it is first used. What a graph returns is valid until the next one is replayed.

Not done here: prefill and sampling, which run eagerly; the engine queues the sampling while the graph still runs.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glyph.local.inference.forward import Forward
from glyph.local.inference.kv_cache import RowCache

FEWEST_ROWS = 8
SHORTEST = 256
WARM_UPS = 2

Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Makes of a function of static buffers one that does the same and returns the same tensor, refilled."""


class CudaCapture:
    """Captures functions as CUDA graphs that share one memory pool. Raises: ValueError without a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ValueError(f"CUDA graphs need a CUDA device, the model is on {device}")
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):  # lazy set-up of libraries must not fall into the capture
            for _ in range(WARM_UPS):
                function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            output = function()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class DecodeGraphs:
    """Runs decode steps of at most `max_rows` rows and `max_length` tokens by the graph of the smallest bucket."""

    def __init__(
        self,
        forward: Forward,
        cache: RowCache,
        max_rows: int,
        max_length: int,
        device: torch.device,
        capture: Capture | None = None,
    ) -> None:
        self._forward, self._cache = forward, cache
        self._capture = capture or CudaCapture(device)
        rows = bucket(max_rows, FEWEST_ROWS)
        cache.reserve(rows, bucket(max_length, SHORTEST))
        cache.fixed = True
        self._host = torch.zeros(3, rows, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._inputs = self._host.to(device)
        self._graphs: dict[tuple[int, int], Callable[[], Tensor]] = {}

    @property
    def captured(self) -> list[tuple[int, int]]:
        """The buckets (rows, visible) that have a graph, in the order of their first use."""
        return list(self._graphs)

    def __call__(self, inputs: NDArray[np.float64], visible: int) -> tuple[Tensor, Tensor]:
        """From token ids, positions and uniforms [3, n], all exact in float64: logits [n, vocabulary], uniforms [n].

        The caller must have waited for the step before, whose copy to the device read the same host memory.
        """
        rows = inputs.shape[1]
        self._host.zero_()
        self._host[:, :rows] = torch.from_numpy(inputs)
        self._inputs.copy_(self._host, non_blocking=True)
        shape = bucket(rows, FEWEST_ROWS), bucket(visible, SHORTEST)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(lambda: self._step(*shape))
        return self._graphs[shape]()[:rows], self._inputs[2, :rows]

    def _step(self, rows: int, visible: int) -> Tensor:
        token_ids, positions = self._inputs[:2, :rows, None].long()
        return self._forward(self._cache, token_ids, positions, 0, visible)


def bucket(number: int, smallest: int) -> int:
    """The smallest of `smallest`, 2 · `smallest`, 4 · `smallest`, … that is not below `number`."""
    size = smallest
    while size < number:
        size *= 2
    return size
