"""Triton looks for a driver in every backend. This one is found by its name, but never active."""

from triton.backends import driver


class CPUDriver(driver.DriverBase):
    """A device without anything to drive."""

    @classmethod
    def is_active(cls):
        """Return False: Triton must not choose it by itself."""
        return False

    def __init__(self):
        pass

    def get_current_target(self):
        """Return a target that no kernel is compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self):
        """Return torch's device."""
        import torch

        return torch.device("cpu")

    def get_device_interface(self):
        """Return torch's module of the device."""
        import torch

        return torch.cpu

    def get_current_device(self):
        """Return the only device."""
        return 0

    def set_current_device(self, device):
        """Do nothing: there is one."""

    def get_current_stream(self, device=None):
        """Return the only stream."""
        return 0


CPUDriver.__abstractmethods__ = frozenset()
del driver
