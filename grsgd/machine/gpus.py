"""Places of GPUs on this machine: their addresses on the PCI bus, and their NUMA nodes."""

from pathlib import Path


def address(properties, number: int) -> str:
    """Return the address of a GPU on the PCI bus; "GPU" and its ``number`` if torch does not tell the address.

    ``properties`` is the result of ``torch.cuda.get_device_properties``.
    """
    try:
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    except AttributeError:
        return f"GPU {number}"


def numa_node(address: str, sys: Path = Path("/sys")) -> int:
    """Return the NUMA node of the GPU at an address; -1 if the system does not tell."""
    try:
        return int((sys / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1
