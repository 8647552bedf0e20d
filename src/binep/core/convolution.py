"""A convolution (stride 1) in its three faces: sums up, sums down, correlation with what is above.

On a GPU they are cuDNN's, which may take float32 through a Fourier or a Winograd transform: sums of
integers then come out a little off. What has to be `exact` is laid out there, window by window, and
multiplied as a matrix, which adds up nothing but the terms themselves.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight


def up(x: Tensor, kernel: Tensor, padding: int, *, exact: bool) -> Tensor:
    """Sums over a kernel, (out, in, side, side): (batch, in, ...) to (batch, out, ...)."""
    if exact and x.is_cuda:
        return up_by_windows(x, kernel, padding)
    return F.conv2d(x, kernel, padding=padding)


def down(maps: Tensor, kernel: Tensor, padding: int, *, exact: bool) -> Tensor:
    """The transpose of `up`: (batch, out, ...) to (batch, in, ...)."""
    if exact and maps.is_cuda:
        return down_by_windows(maps, kernel, padding)
    return F.conv_transpose2d(maps, kernel, padding=padding)


def correlate(x: Tensor, shape: torch.Size, maps: Tensor, padding: int, *, exact: bool) -> Tensor:
    """`d<up(x), maps>/d kernel`, summed over the batch, of the kernel's shape."""
    if exact and x.is_cuda:
        return correlate_by_windows(x, shape, maps, padding)
    return conv2d_weight(x, shape, maps, padding=padding)


def up_by_windows(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    side = kernel.shape[-1]
    sums = kernel.flatten(1) @ F.unfold(x, side, padding=padding)
    return sums.unflatten(2, [size + 2 * padding - side + 1 for size in x.shape[2:]])


def down_by_windows(maps: Tensor, kernel: Tensor, padding: int) -> Tensor:
    side = kernel.shape[-1]
    height, width = (size - 2 * padding + side - 1 for size in maps.shape[2:])
    return F.fold(kernel.flatten(1).T @ maps.flatten(2), (height, width), side, padding=padding)


def correlate_by_windows(x: Tensor, shape: torch.Size, maps: Tensor, padding: int) -> Tensor:
    windows = F.unfold(x, shape[-1], padding=padding)
    return torch.einsum("bop,bkp->ok", maps.flatten(2), windows).reshape(shape)
