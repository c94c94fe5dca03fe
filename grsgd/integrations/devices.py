"""Choice of the device of a rank that Lightning runs as one process with one device."""

from collections.abc import Sequence

import torch


def device_of(local_rank: int, devices: Sequence[torch.device]) -> torch.device:
    """Return the device of the rank that has the number ``local_rank`` on its host.

    ``devices`` are the devices that Lightning has chosen. ``devices=1`` chooses the same GPU in every process. The
    ranks of a host then use the host's GPUs in turn.
    """
    if len(devices) == 1 and devices[0].type == "cuda":
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return devices[local_rank % len(devices)]
