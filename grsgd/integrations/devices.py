"""Device of a rank that Lightning has started as one process with one device."""

from collections.abc import Sequence

import torch


def device_of(local_rank: int, devices: Sequence[torch.device]) -> torch.device:
    """Return the device of the rank with this number on its host.

    ``devices`` has the devices that Lightning has chosen. ``devices=1`` chooses the same GPU in every process, so the
    ranks then take the host's GPUs in turn.
    """
    if len(devices) == 1 and devices[0].type == "cuda":
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return devices[local_rank % len(devices)]
