"""CUDA graphs: the launches of a mini-batch are recorded once per shape, then replayed."""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

MOST = 16  # graphs that are kept: each holds the memory of a mini-batch


class Replayable(Protocol):
    def replay(self) -> None: ...


# Recording in two threads at once would mix their launches.
_recording = threading.Lock()


def record(
    function: Callable[[], None], restore: Callable[[], None] = lambda: None
) -> torch.cuda.CUDAGraph:
    """A graph of what a function launches, after a warm-up that compiles its kernels.

    Args:
        restore: undoes what the warm-up changed.
    """
    with _recording:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        restore()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            function()
    return graph


@dataclass
class Recorded:
    """A graph, the buffers that it reads its inputs from, and the values it was recorded for."""

    graph: Replayable
    places: list[Tensor]
    fixed: Hashable


class Graphs:
    """The graphs of an engine, by kind and by the shapes of their inputs.

    Attributes:
        recordings: number of recordings so far.

    Args:
        recorder: see `record`.
        most: number of graphs to keep; the least recently replayed one is dropped.
    """

    def __init__(
        self,
        recorder: Callable[[Callable[[], None], Callable[[], None]], Replayable] = record,
        most: int = MOST,
    ) -> None:
        self.recorder, self.most, self.recordings = recorder, most, 0
        self._graphs: dict[Hashable, Recorded] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def run(
        self,
        kind: Hashable,
        function: Callable[..., None],
        inputs: Sequence[Tensor],
        restore: Callable[[], Callable[[], None]],
        fixed: Hashable = None,
    ) -> None:
        """Run a function of some tensors that changes others in place.

        Args:
            restore: remembers these others, and returns a function that restores them.
            fixed: what the function reads besides, such as addresses. A graph is recorded anew, in
                place of the old one, where this has changed.
        """
        key = kind, tuple((x.shape, x.dtype) for x in inputs)
        found = self._graphs.pop(key, None)
        if found is None or found.fixed != fixed:
            places = [x.clone() for x in inputs]
            graph = self.recorder(lambda: function(*places), restore())
            found = Recorded(graph, places, fixed)
            self.recordings += 1
        self._graphs[key] = found
        while len(self._graphs) > self.most:
            del self._graphs[next(iter(self._graphs))]
        for place, values in zip(found.places, inputs, strict=True):
            place.copy_(values)
        found.graph.replay()
