"""Coded multicast of gradients: a library of its own, without training in it."""
