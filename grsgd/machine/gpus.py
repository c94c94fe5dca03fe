"""Addresses of this machine's GPUs on the PCI bus, and the NUMA nodes of GPUs."""

from pathlib import Path


def address(properties, number: int) -> str:
    """Return the address of a GPU on the PCI bus. If torch does not know the address, return "GPU" and the GPU's
    ``number``.

    ``properties`` is the result of ``torch.cuda.get_device_properties`` for the GPU.
    """
    try:
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    except AttributeError:
        return f"GPU {number}"


def numa_node(address: str, sys: Path = Path("/sys")) -> int:
    """Return the NUMA node of the GPU with the PCI address ``address``, or -1 if the operating system does not know the
    node."""
    try:
        return int((sys / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1
